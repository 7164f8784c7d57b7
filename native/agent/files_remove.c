/*
 * REMOVE. A tree is taken down depth first, following no link and crossing no mount, with a bounded number of descriptors and
 * buffers whatever its depth: the first LEVELS_HELD directories stay open at the place where they were left; deeper ones are
 * opened again by `..`, checked to be the one that was left, and read from their start, where by then only the rest is.
 * What lies deeper than DEPTH_MAX is moved up into the tree's top, and taken down from there.
 */
#include "dirents.h"
#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define LEVELS_HELD 16
#define DEPTH_MAX 1024
#define FRUITLESS_MAX 8192 /* descents without one removal: a file system that says `not empty` and lists nothing */

struct level {
  ino_t ino;
  int fd; /* -1: not held */
};
struct held {
  ssize_t size, at;
  char buffer[4096] __attribute__((aligned(8)));
};

struct removal {
  struct job *job;
  dev_t device;
  unsigned depth, fruitless, moved;
  int fd; /* of the directory at `depth` */
  struct level levels[DEPTH_MAX];
  struct held held[LEVELS_HELD], deeper;
  char failed[NAME_MAX + 1]; /* the entry that could not be removed */
};

static struct held *buffer_of(struct removal *r) {
  return r->depth < LEVELS_HELD ? &r->held[r->depth] : &r->deeper;
}

static int fail(struct removal *r, const struct entry *e, int err) {
  snprintf(r->failed, sizeof r->failed, "%s", e ? e->name : "");
  errno = err;
  return -1;
}

/* 1: entered. 0: there is nothing to enter there any more. -1: errno. */
static int enter(struct removal *r, const struct entry *e) {
  struct stat st;
  int fd = openat(r->fd, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : fail(r, e, errno);
  int err = 0;
  if (fstat(fd, &st) < 0) err = errno;
  else if (st.st_dev != r->device) err = EBUSY; /* something is mounted there */
  else if (r->fruitless++ > FRUITLESS_MAX) err = ENOTEMPTY;
  if (err) {
    close(fd);
    return fail(r, e, err);
  }
  if (r->depth + 1 == DEPTH_MAX) {
    char name[40];
    close(fd);
    snprintf(name, sizeof name, ".forkd-remove-%llx-%u", (unsigned long long)st.st_ino, r->moved++);
    r->fruitless = 0;
    return renameat(r->fd, e->name, r->levels[0].fd, name) < 0 ? fail(r, e, errno) : 0;
  }
  if (r->depth >= LEVELS_HELD) {
    close(r->fd);
    r->levels[r->depth].fd = -1;
  }
  r->depth++;
  r->fd = fd;
  r->levels[r->depth] = (struct level){st.st_ino, fd};
  struct held *h = buffer_of(r);
  h->size = h->at = 0;
  return 1;
}

/* Back to the directory above. It is entered at the entry that was descended into, or at its start: so that one is removed next. */
static int leave(struct removal *r) {
  struct level *above = &r->levels[r->depth - 1];
  if (above->fd < 0) {
    struct stat st;
    int fd = openat(r->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(r, NULL, errno);
    if (fstat(fd, &st) < 0 || st.st_dev != r->device || st.st_ino != above->ino) {
      close(fd);
      return fail(r, NULL, EBUSY); /* moved meanwhile: `..` might lead out of the tree */
    }
    above->fd = fd;
    r->deeper.size = r->deeper.at = 0;
  }
  close(r->fd);
  r->depth--;
  r->fd = above->fd;
  return 0;
}

/* 0: gone. 1: a directory that is not empty. -1: errno. */
static int remove_entry(struct removal *r, const struct entry *e) {
  bool directory = e->type == DT_DIR;
  for (int attempt = 0; attempt < 2; attempt++, directory = !directory) {
    if (unlinkat(r->fd, e->name, directory ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT) {
      r->fruitless = 0;
      return 0;
    }
    if (directory && (errno == ENOTEMPTY || errno == EEXIST)) return 1;
    /* Of another kind than it was said to be. Linux says EISDIR; POSIX has EPERM, which a file may also have of its own. */
    if (directory ? errno != ENOTDIR : errno != EISDIR) break;
  }
  return fail(r, e, errno);
}

/* Empties the directory at depth 0. */
static int empty(struct removal *r) {
  r->held[0].size = r->held[0].at = 0;
  for (;;) {
    struct held *h = buffer_of(r);
    if (job_cancelled(r->job)) return fail(r, NULL, ECANCELED);
    if (h->at >= h->size) {
      h->at = 0;
      h->size = entries_read(r->fd, h->buffer, sizeof h->buffer);
      if (h->size < 0 && errno != ENOENT) return fail(r, NULL, errno);
      if (h->size <= 0) {
        h->size = 0;
        if (r->depth == 0) return 0;
        if (leave(r) < 0) return -1;
        continue;
      }
    }
    struct entry *e = entry_at(h->buffer, h->at);
    int left = entry_is_dots(e) ? 0 : remove_entry(r, e);
    int entered = left > 0 ? enter(r, e) : 0;
    if (left < 0 || entered < 0) return -1;
    if (!entered) h->at += e->size;
  }
}

static int remove_tree(struct removal *r, int parent, const char *base) {
  struct stat st;
  int top = openat(parent, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (top < 0) return -1;
  if (fstat(top, &st) < 0) {
    close(top);
    return -1;
  }
  r->device = st.st_dev;
  r->fd = top;
  r->depth = r->fruitless = r->moved = 0;
  r->levels[0] = (struct level){st.st_ino, top};
  int result;
  for (int pass = 0;; pass++) {
    result = lseek(top, 0, SEEK_SET) < 0 ? -1 : empty(r);
    if (result < 0) break;
    result = unlinkat(parent, base, AT_REMOVEDIR);
    /* Not empty: others add to it, or something was moved up behind the place that was read. */
    if (result == 0 || (errno != ENOTEMPTY && errno != EEXIST)) break;
    if (pass > 1000) break;
  }
  int err = errno;
  if (r->depth >= LEVELS_HELD) close(r->fd);
  for (unsigned i = 0; i <= r->depth && i < LEVELS_HELD; i++)
    close(r->levels[i].fd);
  errno = err;
  return result;
}

void file_remove(struct job *j, const struct fields *f) {
  char path[PATH_MAX], base[NAME_MAX + 2], shown[2][SHOWN_PATH];
  struct removal r;
  r.job = j;
  r.failed[0] = 0;
  if (!file_path(j, f, F_PATH, path)) return;
  bool recursive = fields_u32(f, F_RECURSIVE, 0) != 0, force = fields_u32(f, F_FORCE, 0) != 0;
  int parent = path_parent(path, base);
  int result = parent < 0 ? -1 : 0;
  if (result == 0 && (strcmp(base, ".") == 0 || strcmp(base, "..") == 0)) {
    job_fail(j, ST_INVALID, EINVAL, "cannot remove %s: name the directory by its own name, and not the root", show_path(path, shown[0]));
    close(parent);
    return;
  }
  if (result == 0) result = unlinkat(parent, base, 0);
  if (result < 0 && parent >= 0 && errno == EISDIR) {
    result = unlinkat(parent, base, AT_REMOVEDIR);
    if (result < 0 && recursive && (errno == ENOTEMPTY || errno == EEXIST)) result = remove_tree(&r, parent, base);
  }
  int err = errno;
  if (result == 0 || (force && err == ENOENT)) job_reply(j, NULL);
  else if (err == ECANCELED) job_fail(j, ST_CANCELLED, 0, "removing %s was cancelled: part of it is gone", show_path(path, shown[0]));
  else if (r.failed[0])
    job_fail(j, status_of_errno(err), err, "cannot remove %s: %s: %s", show_path(path, shown[0]), show_path(r.failed, shown[1]), strerror(err));
  else job_fail_path(j, err, "remove", path);
  if (parent >= 0) close(parent);
}
