/* Bodies of the verbs of files, and what they share. */
#pragma once
#include "jobs.h"
#include "paths.h"

/* Copies a path of the request. False, and the job failed, when it is absent, empty, too long, or has a NUL. */
bool file_path(struct job *j, const struct fields *f, uint16_t tag, char path[PATH_MAX]);
/* "a fifo". */
const char *file_kind(mode_t mode);

void file_list(struct job *j, const struct fields *f);
void file_stat(struct job *j, const struct fields *f);
void file_mkdir(struct job *j, const struct fields *f);
void file_rename(struct job *j, const struct fields *f);
void file_remove(struct job *j, const struct fields *f);
void file_symlink(struct job *j, const struct fields *f);
void file_setattr(struct job *j, const struct fields *f);
