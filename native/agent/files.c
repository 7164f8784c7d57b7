/*
 * READ and WRITE, and which verb of files is whose. All are bodies of jobs: a file system that hangs holds one worker.
 *
 * WRITE makes a file of a temporary name beside its target, and at the host's end of file: owner, mode, fsync, rename, fsync of
 * the directory. Whatever fails or is cancelled before the rename leaves the old file and no other.
 */
#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define CHUNK 65536

bool file_path(struct job *j, const struct fields *f, uint16_t tag, char path[PATH_MAX]) {
  int status = fields_string(f, tag, path, PATH_MAX);
  if (status == ST_OK && path[0] == 0) status = ST_INVALID;
  if (status == ST_OK) return true;
  if (status == ST_TOO_LONG) job_fail(j, status, ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
  else job_fail(j, status, EINVAL, "the path is missing, empty, or has a NUL");
  return false;
}

const char *file_kind(mode_t mode) {
  switch (mode & S_IFMT) {
  case S_IFREG: return "a file";
  case S_IFDIR: return "a directory";
  case S_IFLNK: return "a symlink";
  case S_IFIFO: return "a fifo";
  case S_IFSOCK: return "a socket";
  case S_IFBLK:
  case S_IFCHR: return "a device";
  default: return "no regular file";
  }
}

/* ---- READ -------------------------------------------------------------------------------------------------------- */

/* Fails unless it is a regular file: opening or reading others may block, or act on a device. */
static bool regular(struct job *j, const struct stat *st, const char *verb, const char *path) {
  char shown[SHOWN_PATH];
  if (S_ISREG(st->st_mode)) return true;
  if (S_ISDIR(st->st_mode)) job_fail_path(j, EISDIR, verb, path);
  else job_fail(j, ST_UNSUPPORTED, 0, "cannot %s %s: it is %s, not a regular file", verb, show_path(path, shown), file_kind(st->st_mode));
  return false;
}

/* Opens without a side effect on what is not a regular file: looks first, and does not trust that look. */
static int open_regular(struct job *j, const char *path, struct stat *st) {
  int look = path_open(path, O_PATH, 0);
  if (look < 0 || fstat(look, st) < 0) {
    job_fail_path(j, errno, "read", path);
    if (look >= 0) close(look);
    return -1;
  }
  close(look);
  if (!regular(j, st, "read", path)) return -1;
  int fd = path_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
  if (fd < 0 || fstat(fd, st) < 0) {
    job_fail_path(j, errno, "read", path);
    if (fd >= 0) close(fd);
    return -1;
  }
  if (regular(j, st, "read", path)) return fd;
  close(fd);
  return -1;
}

static void file_read(struct job *j, const struct fields *f) {
  char path[PATH_MAX];
  struct stat st;
  if (!file_path(j, f, F_PATH, path)) return;
  uint64_t offset = fields_u64(f, F_OFFSET, 0), length = fields_u64(f, F_LENGTH, UINT64_MAX);
  if (offset > INT64_MAX) {
    job_fail(j, ST_INVALID, EINVAL, "the offset %llu is over 2^63 - 1", (unsigned long long)offset);
    return;
  }
  int fd = open_regular(j, path, &st);
  if (fd < 0) return;
  if (offset > 0 && lseek(fd, (off_t)offset, SEEK_SET) < 0) {
    job_fail_path(j, errno, "seek in", path);
    close(fd);
    return;
  }
  /* A file that grows as fast as it is read would never end: what it holds now is read. /proc tells no size. */
  uint64_t held = (uint64_t)st.st_size > offset ? (uint64_t)st.st_size - offset : 0;
  if (st.st_size > 0 && length > held) length = held;
  struct out o = {.size = 0, .overflow = false};
  out_info(&o, &st);
  job_reply(j, &o);
  while (length > 0) {
    uint8_t bytes[CHUNK];
    ssize_t n = read(fd, bytes, length < CHUNK ? (size_t)length : CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) { /* EAGAIN: the end, of such as /proc/kmsg */
      job_fail_path(j, errno, "read", path);
      break;
    }
    if (n <= 0 || !job_write(j, bytes, (size_t)n)) break;
    length -= (uint64_t)n;
  }
  close(fd);
}

/* ---- WRITE ------------------------------------------------------------------------------------------------------- */

struct upload {
  const char *path; /* as asked for */
  int parent, fd;
  char base[NAME_MAX + 2], temporary[40];
  mode_t mode;
  uid_t uid;
  gid_t gid;
};

/* The directory and name to replace, and the attributes that the new file gets. */
static bool upload_target(struct job *j, struct upload *u, const struct fields *f) {
  size_t size = strlen(u->path);
  if (u->path[size - 1] == '/') {
    job_fail_path(j, EISDIR, "write", u->path);
    return false;
  }
  uint32_t mode = fields_u32(f, F_MODE, UINT32_MAX);
  uid_t uid = fields_u32(f, F_UID, UINT32_MAX);
  gid_t gid = fields_u32(f, F_GID, UINT32_MAX);
  if (mode != UINT32_MAX && mode > 07777) {
    job_fail(j, ST_INVALID, EINVAL, "the mode %o is over 7777", (unsigned)mode);
    return false;
  }
  u->parent = path_target(u->path, u->base);
  if (u->parent < 0 && errno == ENOENT && fields_u32(f, F_MKDIRS, 0)) {
    if (path_make_parents(u->path, uid, gid) < 0) {
      job_fail_path(j, errno, "make the directories of", u->path);
      return false;
    }
    u->parent = path_target(u->path, u->base);
  }
  if (u->parent < 0) {
    job_fail_path(j, errno, "write", u->path);
    return false;
  }
  struct stat old;
  bool exists = fstatat(u->parent, u->base, &old, AT_SYMLINK_NOFOLLOW) == 0;
  if (!exists && errno != ENOENT) {
    job_fail_path(j, errno, "write", u->path);
    return false;
  }
  if (exists && !regular(j, &old, "write", u->path)) return false;
  u->mode = mode != UINT32_MAX ? mode : exists ? old.st_mode & 07777 : 0644;
  u->uid = uid != UINT32_MAX ? uid : exists ? old.st_uid : (uid_t)-1;
  u->gid = gid != UINT32_MAX ? gid : exists ? old.st_gid : (gid_t)-1;
  return true;
}

static int upload_open(struct upload *u) {
  for (int attempt = 0; attempt < 16; attempt++) {
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return -1;
    snprintf(u->temporary, sizeof u->temporary, ".forkd-upload-%016llx", (unsigned long long)random);
    u->fd = openat(u->parent, u->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (u->fd >= 0 || errno != EEXIST) return u->fd;
  }
  return -1;
}

/* Writes what comes. False when it failed, with errno; 0: cancelled. */
static bool upload_content(struct job *j, struct upload *u) {
  uint8_t bytes[CHUNK];
  for (;;) {
    ssize_t n = job_read(j, bytes, sizeof bytes);
    if (n == 0) return true;
    if (n < 0) {
      errno = 0;
      return false;
    }
    for (ssize_t at = 0; at < n;) {
      ssize_t wrote = write(u->fd, bytes + at, (size_t)(n - at));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return false;
      at += wrote;
    }
  }
}

static bool upload_commit(struct upload *u, struct stat *st) {
  /* Owner first: a change of owner clears setuid bits. */
  if (fchown(u->fd, u->uid, u->gid) < 0 || fchmod(u->fd, u->mode) < 0 || fsync(u->fd) < 0) return false;
  if (renameat(u->parent, u->temporary, u->parent, u->base) < 0) return false;
  u->temporary[0] = 0;
  int directory = openat(u->parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool synced = directory >= 0 && (fsync(directory) == 0 || errno == EINVAL);
  int err = errno;
  if (directory >= 0) close(directory);
  errno = err;
  return synced && fstat(u->fd, st) == 0;
}

static void file_write(struct job *j, const struct fields *f) {
  char path[PATH_MAX];
  struct stat st;
  struct upload u = {.path = path, .parent = -1, .fd = -1};
  if (!file_path(j, f, F_PATH, path)) return;
  if (upload_target(j, &u, f)) {
    if (upload_open(&u) < 0) {
      job_fail_path(j, errno, "write", path);
    } else {
      job_reply(j, NULL);
      if (upload_content(j, &u) && upload_commit(&u, &st)) {
        struct out o = {.size = 0, .overflow = false};
        out_info(&o, &st);
        job_done(j, ST_OK, 0, &o);
      } else {
        int err = errno;
        if (u.temporary[0]) unlinkat(u.parent, u.temporary, 0);
        if (err) job_fail_path(j, err, "write", path);
        else job_fail(j, ST_CANCELLED, 0, "the upload of the file was cancelled: nothing was changed");
      }
    }
  }
  if (u.fd >= 0) close(u.fd);
  if (u.parent >= 0) close(u.parent);
}

/* ---- verbs ------------------------------------------------------------------------------------------------------- */

void verb_file(struct slot *s, uint16_t verb, const struct fields *f) {
  switch (verb) {
  case V_READ: job_start_with(s, file_read, f, false, true); return;
  case V_WRITE: job_start_with(s, file_write, f, true, false); return;
  case V_LIST: job_start_with(s, file_list, f, false, true); return;
  case V_STAT: job_start_with(s, file_stat, f, false, false); return;
  case V_MKDIR: job_start_with(s, file_mkdir, f, false, false); return;
  case V_RENAME: job_start_with(s, file_rename, f, false, false); return;
  case V_REMOVE: job_start_with(s, file_remove, f, false, false); return;
  case V_SYMLINK: job_start_with(s, file_symlink, f, false, false); return;
  case V_SETATTR: job_start_with(s, file_setattr, f, false, false); return;
  default: slot_fail(s, ST_UNSUPPORTED, 0, "verb %u is none of files", verb);
  }
}
