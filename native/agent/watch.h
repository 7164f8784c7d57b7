/* The directories that one WATCH looks at. Everything of it runs on the watch's own thread. */
#pragma once
#include "jobs.h"
#include "paths.h"

#define WATCH_DIRECTORIES 32768 /* of one watch */
#define SEEN_SIZE 8192          /* a power of two */

/* A watched directory. Node 0 is the watched path itself, which may also be a file. */
struct node {
  int32_t wd;     /* -1: free */
  int32_t parent; /* -1: the root */
  char name[NAME_MAX + 1];
};

struct watch {
  struct job *job;
  int fd; /* inotify */
  bool recursive, is_directory, lost, gone;
  char path[PATH_MAX]; /* absolute, without a slash at the end; empty for `/` */
  dev_t device;
  ino_t ino;

  struct node *nodes;
  int32_t capacity, used; /* `used`: one past the highest node in use */
  int32_t *by_wd;         /* open addressing, twice the capacity; -1: empty, -2: was used */
  int32_t *todo;          /* nodes to scan, a stack */
  int32_t todo_count;

  /*
   * Entries that a scan of a new directory has reported, until the events that were in the queue by then are consumed:
   * inotify may tell the same again.
   */
  uint64_t seen[SEEN_SIZE];
  uint32_t seen_count;
  size_t seen_bytes; /* of the queue that may repeat them */

  /* A directory that left its place; it may turn up at another. */
  uint32_t move_cookie;
  int32_t move_node; /* -1: none */

  size_t out_size;
  uint8_t out[32768];
};

/* watch_tree.c */
int tree_open(struct watch *w); /* maps memory, opens inotify, watches the path and what is below. -1: errno, told by tree_error */
void tree_close(struct watch *w);
/* Watches all anew, after events were lost. */
int tree_again(struct watch *w);
int32_t tree_find(const struct watch *w, int32_t wd);
int32_t tree_child(const struct watch *w, int32_t parent, const char *name);
/* Watches a directory that turned up, and reports what is in it already. */
void tree_appeared(struct watch *w, int32_t parent, const char *name, size_t buffered);
void tree_moved(struct watch *w, int32_t node, int32_t parent, const char *name);
void tree_forget(struct watch *w, int32_t node);      /* the kernel has dropped it */
void tree_drop_below(struct watch *w, int32_t node);  /* it and all below left the tree */
bool tree_path(const struct watch *w, int32_t node, const char *name, char to[PATH_MAX]);
/* True, and forgotten, when a scan has told this one. */
bool tree_seen(struct watch *w, int32_t node, const char *name);

/* watch.c */
void watch_emit(struct watch *w, uint32_t event, int32_t node, const char *name, bool directory, uint32_t cookie);
