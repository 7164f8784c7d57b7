/*
 * Paths of the guest, below options.root. Names are any bytes but NUL. All return -1 and set errno as the system calls do.
 * A path that is not absolute is taken relative to `/`: the agent has no working directory that anybody knows.
 */
#pragma once
#include "agent.h"
#include <limits.h>
#include <sys/stat.h>

/* openat of a path. Symlinks of it stay below the root. */
int path_open(const char *path, int flags, mode_t mode);
/* Opens the directory that holds the last component (O_PATH), and copies that component. For `/` the component is ".". */
int path_parent(const char *path, char base[NAME_MAX + 2]);
/* As path_parent, after following a symlink that the last component is. What it points to need not exist. */
int path_target(const char *path, char base[NAME_MAX + 2]);
/* Makes missing directories up to the last slash; new ones get the owner when it is not -1. */
int path_make_parents(const char *path, uid_t uid, gid_t gid);

/* Bytes that messages show of a path, with its quotes. */
#define SHOWN_PATH 700
/* The path in quotes, with control characters escaped, so that a message stays one line. */
const char *show_path(const char *path, char to[SHOWN_PATH]);

#define INFO_SIZE 48
/* Field `info`. */
void info_encode(const struct stat *st, uint8_t to[INFO_SIZE]);
void out_info(struct out *o, const struct stat *st);
