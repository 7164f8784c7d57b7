/* A raw disk, copied while its guest stands still. */
#define _GNU_SOURCE
#include "disk-copy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copied between two looks at the time, bytes. */
#define PIECE (8ll << 20)

static int failed(struct fault *f, const char *what, const char *name) { return fail(f, errno, "%s %.200s: %s", what, name, strerror(errno)); }

/* From `at` up to `end`. */
static int copy_data(int in, int out, off_t at, off_t end, int64_t due, atomic_bool *cancel, struct fault *f) {
  while (at < end) {
    off_t from = at, to = at;
    size_t piece = (size_t)(end - at < PIECE ? end - at : PIECE);
    if (atomic_load(cancel)) return fail(f, ECANCELED, "the capture was aborted");
    if (now_us() > due) return fail(f, ETIMEDOUT, "the pause was over before the disk was copied");
    ssize_t n = copy_file_range(in, &from, out, &to, piece, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(f, "copy", "the disk");
    if (n == 0) return fail(f, EIO, "the disk has become shorter");
    at += n;
  }
  return 0;
}

static int copy_sparse(int in, int out, off_t size, int64_t due, atomic_bool *cancel, struct fault *f) {
  if (ftruncate(out, size)) return failed(f, "size", "the copy of the disk");
  for (off_t at = 0; at < size;) {
    off_t data = lseek(in, at, SEEK_DATA), hole;
    if (data < 0 && errno == ENXIO) return 0; /* no data any more */
    if (data < 0 || (hole = lseek(in, data, SEEK_HOLE)) < 0) return failed(f, "find the data of", "the disk");
    if (copy_data(in, out, data, hole, due, cancel, f)) return -1;
    at = hole;
  }
  return 0;
}

int disk_copy(const char *from, const char *to, int64_t due, atomic_bool *cancel, struct fault *f) {
  /* The VMM's user may have put anything in the place of its disk. */
  int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat facts;
  if (in < 0) return failed(f, "open", from);
  int result = fstat(in, &facts) ? failed(f, "look at", from) : S_ISREG(facts.st_mode) ? 0 : fail(f, EINVAL, "%.100s is no disk", from);
  int out = result ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (result == 0 && out < 0) result = failed(f, "make", to);
  if (result == 0 && ioctl(out, FICLONE, in)) result = copy_sparse(in, out, facts.st_size, due, cancel, f);
  if (out >= 0 && close(out) && result == 0) result = failed(f, "write", to);
  if (out >= 0 && result) unlink(to);
  close(in);
  return result;
}
