/* The part of a graft that is copied into the VMM: short extents; all of them where nothing could be mapped. */
#define _GNU_SOURCE
#include "graft-copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define IOVECS 512
struct copier {
  struct iovec local[IOVECS], remote[IOVECS];
  int count;
};

static int flush(struct copier *c, struct fault *f) {
  size_t want = 0;
  for (int i = 0; i < c->count; i++) want += c->local[i].iov_len;
  if (want == 0) return 0;
  ssize_t n = process_vm_writev(vmm.pid, c->local, (unsigned long)c->count, c->remote, (unsigned long)c->count, 0);
  c->count = 0;
  return n == (ssize_t)want ? 0 : fail(f, n < 0 ? errno : EFAULT, "copy into the VMM's RAM: %s", n < 0 ? strerror(errno) : "cut short");
}

static int copy(struct copier *c, const void *from, uint64_t to, uint64_t length, struct fault *f) {
  while (length > 0) {
    /* One call moves at most 2 GiB. */
    size_t part = length > 1 << 20 ? 1 << 20 : (size_t)length;
    c->local[c->count] = (struct iovec){(void *)(uintptr_t)from, part};
    c->remote[c->count] = (struct iovec){(void *)(uintptr_t)to, part};
    if (++c->count == IOVECS && flush(c, f)) return -1;
    from = (const uint8_t *)from + part, to += part, length -= part;
  }
  return 0;
}

/* Only a base has holes that mean zero, and it is laid over memory that is still zero. */
static int copy_data(struct copier *c, const struct graft_file *file, const struct graft_extent *e, uint64_t to, struct fault *f) {
  uint64_t at = e->file_offset, end = at + e->length;
  while (at < end) {
    off_t data = lseek(file->fd, (off_t)at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return 0;
    if (data < 0) return fail(f, errno, "find data in %s", file->path);
    off_t hole = lseek(file->fd, data, SEEK_HOLE);
    if (hole < 0) return fail(f, errno, "find a hole in %s", file->path);
    uint64_t from = (uint64_t)data, stop = (uint64_t)hole < end ? (uint64_t)hole : end;
    if (from >= end) return 0;
    if (copy(c, (uint8_t *)file->view + from, to + (from - e->file_offset), stop - from, f)) return -1;
    at = stop;
  }
  return 0;
}

static const uint8_t zeros[1 << 20];
static int copy_zeros(struct copier *c, uint64_t to, uint64_t length, struct fault *f) {
  for (; length > 0;) {
    uint64_t part = length < sizeof zeros ? length : sizeof zeros;
    if (copy(c, zeros, to, part, f)) return -1;
    to += part, length -= part;
  }
  return 0;
}

/* The extents of kind copy; all of them where nothing could be mapped. */
int graft_copy(const struct graft *g, struct fault *f) {
  struct copier *c = calloc(1, sizeof *c);
  if (!c) return fail(f, ENOMEM, "no memory to copy");
  int result = 0;
  for (uint32_t i = 0; i < g->extent_count && result == 0; i++) {
    const struct graft_extent *e = &g->extents[i];
    uint64_t to = graft_address(g, e);
    if (e->kind == EXTENT_COPY) result = copy(c, (uint8_t *)g->files[e->file].view + e->file_offset, to, e->length, f);
    else if (g->mapped) continue;
    else if (e->kind == EXTENT_ZERO) result = copy_zeros(c, to, e->length, f);
    else if (e->file == 0) result = copy_data(c, &g->files[0], e, to, f);
    else result = copy(c, (uint8_t *)g->files[e->file].view + e->file_offset, to, e->length, f);
    /* In order: one that lies over another comes after it. */
  }
  if (result == 0) result = flush(c, f);
  free(c);
  return result;
}
