/* Opening what a path names, below the root; see paths.h. */
#include "paths.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
/* linux/openat2.h, which musl's headers lack. */
struct how {
  uint64_t flags, mode, resolve;
};
#define RESOLVE_BELOW_ROOT 0x10 /* RESOLVE_IN_ROOT */
#define LINKS_MAX 40            /* as the kernel's own limit */

int path_open(const char *path, int flags, mode_t mode) {
  char absolute[PATH_MAX];
  if (path[0] == 0) {
    errno = ENOENT;
    return -1;
  }
  if (options.real && path[0] == '/') return openat(AT_FDCWD, path, flags | O_CLOEXEC, mode);
  int n = snprintf(absolute, sizeof absolute, "/%s", path);
  if (n < 0 || (size_t)n >= sizeof absolute) {
    errno = ENAMETOOLONG;
    return -1;
  }
  if (options.real) return openat(AT_FDCWD, absolute, flags | O_CLOEXEC, mode);
  int root = open(options.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return -1;
  struct how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC), .mode = (flags & O_CREAT) ? mode : 0, .resolve = RESOLVE_BELOW_ROOT};
  int fd = (int)syscall(SYS_openat2, root, absolute, &how, sizeof how);
  int err = errno;
  close(root);
  errno = err;
  return fd;
}

int path_parent(const char *path, char base[NAME_MAX + 2]) {
  char parent[PATH_MAX];
  size_t end = strlen(path);
  if (end == 0 || end >= sizeof parent) {
    errno = end ? ENAMETOOLONG : ENOENT;
    return -1;
  }
  while (end > 0 && path[end - 1] == '/')
    end--;
  size_t start = end;
  while (start > 0 && path[start - 1] != '/')
    start--;
  if (end - start > NAME_MAX) {
    errno = ENAMETOOLONG;
    return -1;
  }
  if (end == 0) {
    memcpy(base, ".", 2);
  } else {
    memcpy(base, path + start, end - start);
    base[end - start] = 0;
  }
  if (start == 0) {
    memcpy(parent, "/", 2);
  } else {
    memcpy(parent, path, start);
    parent[start] = 0;
  }
  return path_open(parent, O_PATH | O_DIRECTORY, 0);
}

int path_target(const char *path, char base[NAME_MAX + 2]) {
  char now[PATH_MAX], target[PATH_MAX];
  if (strlen(path) >= sizeof now) {
    errno = ENAMETOOLONG;
    return -1;
  }
  strcpy(now, path);
  for (int links = 0; links < LINKS_MAX; links++) {
    int parent = path_parent(now, base);
    if (parent < 0) return -1;
    ssize_t n = readlinkat(parent, base, target, sizeof target);
    if (n < 0) return parent; /* no link, or nothing there */
    close(parent);
    if ((size_t)n >= sizeof target) {
      errno = ENAMETOOLONG;
      return -1;
    }
    target[n] = 0;
    /* Joined as text: the kernel walks the links before it, so `..` means what it would have meant. */
    size_t keep = 0;
    if (target[0] != '/') {
      keep = strlen(now);
      while (keep > 0 && now[keep - 1] == '/')
        keep--;
      while (keep > 0 && now[keep - 1] != '/')
        keep--;
    }
    if (keep + (size_t)n >= sizeof now) {
      errno = ENAMETOOLONG;
      return -1;
    }
    memcpy(now + keep, target, (size_t)n + 1);
  }
  errno = ELOOP;
  return -1;
}

int path_make_parents(const char *path, uid_t uid, gid_t gid) {
  char now[PATH_MAX], base[NAME_MAX + 2];
  size_t size = strlen(path);
  if (size >= sizeof now) {
    errno = ENAMETOOLONG;
    return -1;
  }
  while (size > 0 && path[size - 1] == '/')
    size--;
  for (size_t i = 1; i < size; i++) {
    if (path[i] != '/' || path[i - 1] == '/') continue;
    memcpy(now, path, i);
    now[i] = 0;
    int parent = path_parent(now, base);
    if (parent < 0) return -1;
    int made = mkdirat(parent, base, 0755);
    int err = errno;
    if (made == 0) {
      /* The umask is not the caller's wish, and an owner is. */
      if (fchmodat(parent, base, 0755, 0) < 0 || ((uid != (uid_t)-1 || gid != (gid_t)-1) && fchownat(parent, base, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)) {
        err = errno;
        close(parent);
        errno = err;
        return -1;
      }
    }
    close(parent);
    if (made < 0 && err != EEXIST) {
      errno = err;
      return -1;
    }
  }
  return 0;
}

const char *show_path(const char *path, char to[SHOWN_PATH]) {
  static const char hex[] = "0123456789abcdef";
  size_t n = 0;
  to[n++] = '"';
  for (const unsigned char *c = (const unsigned char *)path; *c; c++) {
    if (n + 10 > SHOWN_PATH) {
      memcpy(to + n, "...", 3);
      n += 3;
      break;
    }
    if (*c < 0x20 || *c == 0x7f || *c == '"' || *c == '\\') {
      memcpy(to + n, "\\x", 2);
      to[n + 2] = hex[*c >> 4];
      to[n + 3] = hex[*c & 15];
      n += 4;
    } else {
      to[n++] = (char)*c;
    }
  }
  to[n++] = '"';
  to[n] = 0;
  return to;
}

static uint8_t *put32(uint8_t *to, uint32_t v) {
  for (int i = 0; i < 4; i++)
    to[i] = (uint8_t)(v >> (8 * i));
  return to + 4;
}

static uint8_t *put64(uint8_t *to, uint64_t v) {
  return put32(put32(to, (uint32_t)v), (uint32_t)(v >> 32));
}

void info_encode(const struct stat *st, uint8_t to[INFO_SIZE]) {
  to = put32(to, (st->st_mode & S_IFMT) >> 12);
  to = put32(to, st->st_mode & 07777);
  to = put32(to, st->st_uid);
  to = put32(to, st->st_gid);
  to = put64(to, (uint64_t)st->st_size);
  to = put64(to, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
  to = put64(to, st->st_ino);
  put64(to, st->st_nlink);
}

void out_info(struct out *o, const struct stat *st) {
  uint8_t info[INFO_SIZE];
  info_encode(st, info);
  out_bytes(o, F_INFO, info, sizeof info);
}
