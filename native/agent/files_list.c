/* LIST: a stream of entries, so that a directory of any size needs one buffer. */
#include "dirents.h"
#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define BUFFER 32768
#define ENTRY_MAX (4 + 3 * 8 + NAME_MAX + INFO_SIZE + PATH_MAX)

struct listing {
  struct job *job;
  size_t size;
  uint8_t bytes[BUFFER];
};

static void put32(struct listing *l, uint32_t v) {
  for (int i = 0; i < 4; i++)
    l->bytes[l->size++] = (uint8_t)(v >> (8 * i));
}

static void put_field(struct listing *l, uint32_t tag, const void *bytes, size_t length) {
  put32(l, tag); /* tag:u16 zero:u16 */
  put32(l, (uint32_t)length);
  memcpy(l->bytes + l->size, bytes, length);
  l->size += length;
}

static bool flush(struct listing *l) {
  bool on = l->size == 0 || job_write(l->job, l->bytes, l->size);
  l->size = 0;
  return on;
}

/* False when nobody listens any more. */
static bool put_entry(struct listing *l, int directory, const struct entry *e) {
  struct stat st = {0};
  char target[PATH_MAX];
  uint8_t info[INFO_SIZE];
  if (fstatat(directory, e->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
    if (errno == ENOENT) return true; /* gone meanwhile */
    st.st_mode = DTTOIF(e->type);     /* there, but cannot be looked at */
    st.st_ino = e->ino;
  }
  ssize_t n = S_ISLNK(st.st_mode) ? readlinkat(directory, e->name, target, sizeof target) : -1;
  if (l->size + ENTRY_MAX > BUFFER && !flush(l)) return false;
  size_t start = l->size;
  l->size += 4;
  put_field(l, F_NAME, e->name, strlen(e->name));
  info_encode(&st, info);
  put_field(l, F_INFO, info, sizeof info);
  if (n >= 0) put_field(l, F_TARGET, target, (size_t)n);
  size_t end = l->size;
  l->size = start;
  put32(l, (uint32_t)(end - start - 4));
  l->size = end;
  return true;
}

void file_list(struct job *j, const struct fields *f) {
  char path[PATH_MAX];
  char buffer[BUFFER] __attribute__((aligned(8)));
  struct listing l;
  l.job = j;
  l.size = 0;
  if (!file_path(j, f, F_PATH, path)) return;
  int fd = path_open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
  if (fd < 0) {
    job_fail_path(j, errno, "list", path);
    return;
  }
  ssize_t n = entries_read(fd, buffer, sizeof buffer);
  if (n < 0) { /* such as the directory of a process that is gone: better told before a listing begins */
    job_fail_path(j, errno, "list", path);
    close(fd);
    return;
  }
  job_reply(j, NULL);
  bool listening = true;
  for (; listening && n > 0; n = entries_read(fd, buffer, sizeof buffer)) {
    for (ssize_t at = 0; listening && at < n;) {
      struct entry *e = entry_at(buffer, at);
      at += e->size;
      if (!entry_is_dots(e)) listening = put_entry(&l, fd, e);
    }
  }
  if (listening && n < 0) job_fail_path(j, errno, "list", path);
  flush(&l);
  close(fd);
}
