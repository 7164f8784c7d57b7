/* STAT, MKDIR, RENAME, SYMLINK, SETATTR: one look or one change. */
#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOREPLACE 1 /* RENAME_NOREPLACE, which musl does not name */

/* Fails with errno when `r` is -1, else replies. */
static void conclude(struct job *j, int r, const char *verb, const char *path) {
  if (r < 0) job_fail_path(j, errno, verb, path);
  else job_reply(j, NULL);
}

void file_stat(struct job *j, const struct fields *f) {
  char path[PATH_MAX], target[PATH_MAX];
  struct stat st;
  if (!file_path(j, f, F_PATH, path)) return;
  bool follow = fields_u32(f, F_FOLLOW, 1) != 0;
  int fd = path_open(path, O_PATH | (follow ? 0 : O_NOFOLLOW), 0);
  if (fd < 0 || fstat(fd, &st) < 0) {
    job_fail_path(j, errno, "stat", path);
  } else {
    struct out o = {.size = 0, .overflow = false};
    out_info(&o, &st);
    ssize_t n = S_ISLNK(st.st_mode) ? readlinkat(fd, "", target, sizeof target) : -1;
    /* The longest targets do not fit beside the rest: LIST tells them. */
    if (n >= 0 && 8 + o.size + 8 + (size_t)n <= FK_MAX_RESPONSE) out_bytes(&o, F_TARGET, target, (size_t)n);
    job_reply(j, &o);
  }
  if (fd >= 0) close(fd);
}

void file_mkdir(struct job *j, const struct fields *f) {
  char path[PATH_MAX], base[NAME_MAX + 2];
  if (!file_path(j, f, F_PATH, path)) return;
  bool parents = fields_u32(f, F_PARENTS, 0) != 0;
  uint32_t mode = fields_u32(f, F_MODE, UINT32_MAX);
  if (mode != UINT32_MAX && mode > 07777) {
    job_fail(j, ST_INVALID, EINVAL, "the mode %o is over 7777", (unsigned)mode);
    return;
  }
  int parent = path_parent(path, base);
  if (parent < 0 && errno == ENOENT && parents) {
    if (path_make_parents(path, (uid_t)-1, (gid_t)-1) < 0) {
      job_fail_path(j, errno, "make the directories of", path);
      return;
    }
    parent = path_parent(path, base);
  }
  if (parent < 0) {
    job_fail_path(j, errno, "make the directory", path);
    return;
  }
  int r = mkdirat(parent, base, 0755);
  if (r == 0) r = fchmodat(parent, base, mode == UINT32_MAX ? 0755 : mode, 0);
  if (r < 0 && errno == EEXIST && parents) {
    int there = path_open(path, O_PATH | O_DIRECTORY, 0); /* a link to a directory will do */
    if (there >= 0) {
      close(there);
      r = 0;
    } else {
      errno = EEXIST;
    }
  }
  conclude(j, r, "make the directory", path);
  close(parent);
}

void file_rename(struct job *j, const struct fields *f) {
  char from[PATH_MAX], to[PATH_MAX], from_base[NAME_MAX + 2], to_base[NAME_MAX + 2], shown[2][SHOWN_PATH];
  if (!file_path(j, f, F_PATH, from) || !file_path(j, f, F_PATH2, to)) return;
  bool replace = fields_u32(f, F_REPLACE, 1) != 0;
  int source = path_parent(from, from_base);
  if (source < 0) {
    job_fail_path(j, errno, "rename", from);
    return;
  }
  int destination = path_parent(to, to_base);
  if (destination < 0) {
    job_fail_path(j, errno, "rename to", to);
    close(source);
    return;
  }
  if (syscall(SYS_renameat2, source, from_base, destination, to_base, replace ? 0 : NOREPLACE) < 0) {
    int err = errno;
    const char *remedy = err == EXDEV ? " (they are on different file systems: copy and remove instead)" : "";
    job_fail(j, status_of_errno(err), err, "cannot rename %s to %s: %s%s", show_path(from, shown[0]), show_path(to, shown[1]), strerror(err), remedy);
  } else {
    job_reply(j, NULL);
  }
  close(source);
  close(destination);
}

void file_symlink(struct job *j, const struct fields *f) {
  char target[PATH_MAX], path[PATH_MAX], base[NAME_MAX + 2];
  if (!file_path(j, f, F_PATH, target) || !file_path(j, f, F_PATH2, path)) return;
  int parent = path_parent(path, base);
  conclude(j, parent < 0 ? -1 : symlinkat(target, parent, base), "make the link", path);
  if (parent >= 0) close(parent);
}

void file_setattr(struct job *j, const struct fields *f) {
  char path[PATH_MAX], base[NAME_MAX + 2];
  if (!file_path(j, f, F_PATH, path)) return;
  uint32_t mode = fields_u32(f, F_MODE, UINT32_MAX), uid = fields_u32(f, F_UID, UINT32_MAX), gid = fields_u32(f, F_GID, UINT32_MAX);
  struct field mtime;
  bool timed = fields_find(f, F_MTIME, &mtime);
  if (mode != UINT32_MAX && mode > 07777) {
    job_fail(j, ST_INVALID, EINVAL, "the mode %o is over 7777", (unsigned)mode);
    return;
  }
  int parent = path_target(path, base);
  struct stat st;
  int r = parent < 0 ? -1 : fstatat(parent, base, &st, AT_SYMLINK_NOFOLLOW);
  /* Owner first: a change of owner clears setuid bits, which a mode of the request may set. */
  if (r == 0 && (uid != UINT32_MAX || gid != UINT32_MAX)) r = fchownat(parent, base, uid, gid, AT_SYMLINK_NOFOLLOW);
  if (r == 0 && mode != UINT32_MAX) r = fchmodat(parent, base, mode, 0);
  if (r == 0 && timed) {
    uint64_t ns = fields_u64(f, F_MTIME, 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}};
    r = utimensat(parent, base, times, AT_SYMLINK_NOFOLLOW);
  }
  conclude(j, r, "set attributes of", path);
  if (parent >= 0) close(parent);
}
