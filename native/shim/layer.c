/*
 * Finds the pages that a VMM has for itself, compares them with what its last link shows, and writes what differs.
 *
 * A page is looked at when the VMM has it for itself, or when the link below shows it from a file that is newer than the source's own fork: the
 * source need not have it privately any more. Every other page shows, in the source as below, the same file that the source was forked from.
 */
#define _GNU_SOURCE
#include "layer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "private.h"
#include "segments.h"

#define PAGE 4096ull
#define BATCH 256 /* pages read, compared and written at a time: what fits into a core's cache */

struct writing {
  const struct layer_source *source;
  struct layer *layer;
  struct segments below; /* by guest offset; inode is the file's index plus one */
  size_t shown, newer; /* segments that have been passed: by pages that are compared, by pages that are wanted */
  int pagemap, memory, fd;
  uint8_t *in;
  uint64_t offsets[BATCH]; /* in the guest, of each page in `in` */
  size_t pages;
  struct iovec out[BATCH]; /* of `in`, what goes into the file */
  size_t out_count, out_bytes;
  struct fault *fault;
};

static const uint8_t zeros[PAGE];

/* Below, by guest offset: zeros are a segment with inode 0, what no extent lists has no segment. */
static int picture(struct writing *w) {
  const struct graft *g = w->source->below;
  for (uint32_t i = 0; i < g->extent_count; i++) {
    const struct graft_extent *e = &g->extents[i];
    struct segment s = {e->guest_offset, e->guest_offset + e->length, e->file_offset, e->kind == EXTENT_ZERO ? 0 : (uint64_t)e->file + 1, 0, 0};
    if (segments_paint(&w->below, s)) return fail(w->fault, ENOMEM, "no memory for %u extents", g->extent_count);
  }
  return 0;
}

/* What is below at this page; NULL when nobody knows. Pages are asked for in rising order. */
static const uint8_t *shown_at(struct writing *w, uint64_t offset) {
  const struct segments *below = &w->below;
  while (w->shown < below->count && below->list[w->shown].end <= offset) w->shown++;
  const struct segment *s = w->shown < below->count ? &below->list[w->shown] : NULL;
  if (!s || s->start > offset) return NULL;
  if (s->inode == 0) return zeros;
  return (const uint8_t *)w->source->below->files[s->inode - 1].view + s->offset + (offset - s->start);
}

static bool is_newer(const struct writing *w, const struct segment *s) { return s->inode == 0 || s->inode > w->source->origin; }

static int keep_going(const struct writing *w) {
  if (atomic_load(w->source->cancel)) return fail(w->fault, ECANCELED, "the capture was aborted");
  if (w->source->due_us && now_us() > w->source->due_us) return fail(w->fault, ETIMEDOUT, "the pause was over before the memory was copied");
  return 0;
}

/* ---- what differs ---- */

static int write_out(struct writing *w) {
  struct iovec *next = w->out;
  size_t count = w->out_count;
  while (count > 0) {
    ssize_t n = pwritev(w->fd, next, (int)count, (off_t)w->layer->bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(w->fault, n < 0 ? errno : ENOSPC, "write the layer: %s", strerror(n < 0 ? errno : ENOSPC));
    w->layer->bytes += (uint64_t)n;
    for (; count > 0 && (size_t)n >= next->iov_len; next++, count--) n -= (ssize_t)next->iov_len;
    if (count > 0) next->iov_base = (uint8_t *)next->iov_base + n, next->iov_len -= (size_t)n;
  }
  w->out_count = w->out_bytes = 0;
  return 0;
}

static int list(struct writing *w, uint64_t offset, bool zero) {
  struct layer *l = w->layer;
  uint32_t page = (uint32_t)(offset / PAGE);
  struct layer_extent *last = l->count ? &l->extents[l->count - 1] : NULL;
  if (last && last->guest_page + last->pages == page && (last->file_page == ALL_ZEROS) == zero) {
    last->pages++; /* data goes into the file in the same order */
    return 0;
  }
  if (l->count == l->room) {
    size_t room = l->room ? l->room * 2 : 1024;
    struct layer_extent *extents = realloc(l->extents, room * sizeof *extents);
    if (!extents) return fail(w->fault, ENOMEM, "no memory for %zu extents", room);
    l->extents = extents, l->room = room;
  }
  uint32_t file_page = zero ? ALL_ZEROS : (uint32_t)((l->bytes + w->out_bytes) / PAGE);
  l->extents[l->count++] = (struct layer_extent){page, 1, file_page};
  return 0;
}

static int take(struct writing *w, uint8_t *page, uint64_t offset) {
  const uint8_t *shown = shown_at(w, offset);
  w->layer->compared++;
  if (shown && !memcmp(page, shown, PAGE)) {
    w->layer->unchanged++;
    return 0;
  }
  bool zero = !memcmp(page, zeros, PAGE);
  if (list(w, offset, zero)) return -1;
  if (zero) return 0;
  struct iovec *last = w->out_count ? &w->out[w->out_count - 1] : NULL;
  if (last && (uint8_t *)last->iov_base + last->iov_len == page) last->iov_len += PAGE;
  else w->out[w->out_count++] = (struct iovec){page, PAGE};
  w->out_bytes += PAGE;
  return 0;
}

/* ---- what is looked at ---- */

/* Writes what differs of the pages that have been read. */
static int settle(struct writing *w) {
  for (size_t i = 0; i < w->pages; i++)
    if (take(w, w->in + i * PAGE, w->offsets[i])) return -1;
  w->pages = 0;
  return write_out(w) || keep_going(w) ? -1 : 0;
}

/*
 * By /proc/PID/mem: process_vm_readv pins each page, and for that gives a clone a copy of its own of each that it still shares with the VMM.
 */
static int read_pages(struct writing *w, uint64_t address, size_t pages) {
  ssize_t n = pread(w->memory, w->in + w->pages * PAGE, pages * PAGE, (off_t)address);
  if (n == (ssize_t)(pages * PAGE)) return 0;
  return fail(w->fault, n < 0 ? errno : EIO, "read %zu pages of process %d at %llx: %s", pages, w->source->pid, (unsigned long long)address, n < 0 ? strerror(errno) : "cut short");
}

/* A run of guest RAM, in rising order. */
static int add(struct writing *w, const struct ram_range *range, uint64_t from, uint64_t to) {
  while (from < to) {
    uint64_t left = (to - from) / PAGE, room = BATCH - w->pages, pages = left < room ? left : room;
    if (read_pages(w, range->address + (from - range->guest_offset), pages)) return -1;
    for (uint64_t i = 0; i < pages; i++, from += PAGE) w->offsets[w->pages++] = from;
    if (w->pages == BATCH && settle(w)) return -1;
  }
  return 0;
}

/* Of what lies between, all that the link below shows from a newer file. */
static int add_newer(struct writing *w, const struct ram_range *range, uint64_t from, uint64_t to) {
  for (; w->newer < w->below.count && w->below.list[w->newer].start < to; w->newer++) {
    const struct segment *s = &w->below.list[w->newer];
    uint64_t start = s->start > from ? s->start : from, end = s->end < to ? s->end : to;
    if (start < end && is_newer(w, s) && add(w, range, start, end)) return -1;
    if (s->end > to) break;
  }
  return 0;
}

static bool may_differ(const struct writing *w, uint64_t offset) {
  const uint8_t *written = w->source->written;
  return !written || written[offset / PAGE / 8] & 1 << offset / PAGE % 8;
}

/* Of what the process has for itself, all that may differ from what is below. */
static int add_own(struct writing *w, const struct ram_range *range, uint64_t from, uint64_t to) {
  while (from < to) {
    uint64_t end = from;
    while (end < to && may_differ(w, end)) end += PAGE;
    if (add(w, range, from, end)) return -1;
    for (from = end; from < to && !may_differ(w, from);) from += PAGE;
  }
  return 0;
}

static int scan_range(struct writing *w, const struct ram_range *range) {
  struct private_walk walk;
  struct span own;
  uint64_t from = range->guest_offset;
  int more;
  w->shown = w->newer = 0;
  private_begin(&walk, w->pagemap, range->address, range->address + range->length);
  while ((more = private_next(&walk, &own, w->fault)) > 0) {
    uint64_t start = range->guest_offset + (own.start - range->address), end = start + (own.end - own.start);
    if (add_newer(w, range, from, start) || add_own(w, range, start, end)) return -1;
    from = end;
  }
  return more < 0 || add_newer(w, range, from, range->guest_offset + range->length) || settle(w) ? -1 : 0;
}

static int open_memory(pid_t pid, struct fault *f) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? fail(f, errno, "open %s: %s", path, strerror(errno)) : fd;
}

static int scan(const struct layer_source *s, int fd, struct layer *l, bool again, struct fault *f) {
  struct writing *w = calloc(1, sizeof *w);
  if (!w) return fail(f, ENOMEM, "no memory to copy");
  *w = (struct writing){.source = s, .layer = l, .fd = fd, .fault = f, .in = malloc(BATCH * PAGE), .memory = open_memory(s->pid, f)};
  w->pagemap = w->memory < 0 ? -1 : private_open(s->pid, f);
  int result = w->pagemap < 0 ? -1 : !w->in ? fail(f, ENOMEM, "no memory to copy") : again ? 0 : picture(w);
  for (uint32_t i = 0; i < s->below->ram_count && result == 0; i++) {
    const struct ram_range *r = &s->below->ram[i];
    if (keep_going(w)) result = -1;
    else result = !again ? scan_range(w, r) : add_own(w, r, r->guest_offset, r->guest_offset + r->length) ? -1 : settle(w);
  }
  if (w->pagemap >= 0) close(w->pagemap);
  if (w->memory >= 0) close(w->memory);
  segments_free(&w->below);
  free(w->in), free(w);
  return result;
}

int layer_write(const struct layer_source *s, int fd, struct layer *l, struct fault *f) { return scan(s, fd, l, false, f); }

int layer_rewrite(const struct layer_source *s, int fd, struct layer *l, struct fault *f) {
  /* Without a picture of what is below, no page is like it: all go into the file. */
  struct layer again = {.bytes = l->bytes};
  int result = scan(s, fd, &again, true, f);
  if (result == 0) result = layer_overlay(l, &again, f);
  l->bytes = again.bytes;
  layer_free(&again);
  return result;
}
