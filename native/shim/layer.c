/*
 * Finds the pages that a VMM has for itself, compares them with what its last link shows, and writes what differs.
 *
 * A page is looked at when /proc/PID/pagemap has it as present or swapped and not "file or shared" (bit 61), or when the link below shows it
 * from a file that is newer than the source's own fork: the source need not have it privately any more. Every other page shows, in the source as
 * below, the same file that the source was forked from.
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

#include "segments.h"

#define PAGE 4096ull
#define BATCH 256 /* pages read and written at a time */
#define ENTRIES 8192 /* of pagemap, read at a time */
#define PRESENT_OR_SWAPPED (3ull << 62)
#define FILE_OR_SHARED (1ull << 61)

static bool is_private(uint64_t entry) { return (entry & PRESENT_OR_SWAPPED) && !(entry & FILE_OR_SHARED); }

struct writing {
  const struct layer_source *source;
  struct layer *layer;
  struct segments below; /* by guest offset; inode is the file's index plus one */
  size_t cursor;
  int pagemap, fd;
  uint8_t *in, *out;
  size_t out_pages;
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

/* Guest offsets are asked for in rising order. */
static const struct segment *segment_at(struct writing *w, uint64_t offset) {
  while (w->cursor < w->below.count && w->below.list[w->cursor].end <= offset) w->cursor++;
  const struct segment *s = w->cursor < w->below.count ? &w->below.list[w->cursor] : NULL;
  return s && s->start <= offset ? s : NULL;
}

/* What is below at this page; NULL when nobody knows. */
static const uint8_t *shown_at(struct writing *w, uint64_t offset) {
  const struct segment *s = segment_at(w, offset);
  if (!s) return NULL;
  if (s->inode == 0) return zeros;
  return (const uint8_t *)w->source->below->files[s->inode - 1].view + s->offset + (offset - s->start);
}

static bool wanted(struct writing *w, uint64_t offset, uint64_t entry) {
  if (is_private(entry)) return true;
  const struct segment *s = segment_at(w, offset);
  return s && (s->inode == 0 || s->inode > w->source->origin);
}

static int flush(struct writing *w) {
  size_t length = w->out_pages * PAGE, done = 0;
  while (done < length) {
    ssize_t n = pwrite(w->fd, w->out + done, length - done, (off_t)(w->layer->bytes + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(w->fault, n < 0 ? errno : ENOSPC, "write the layer: %s", strerror(n < 0 ? errno : ENOSPC));
    done += (size_t)n;
  }
  w->layer->bytes += length;
  w->out_pages = 0;
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
  uint32_t file_page = zero ? ALL_ZEROS : (uint32_t)(l->bytes / PAGE + w->out_pages);
  l->extents[l->count++] = (struct layer_extent){page, 1, file_page};
  return 0;
}

static int take(struct writing *w, const uint8_t *page, uint64_t offset) {
  const uint8_t *shown = shown_at(w, offset);
  w->layer->compared++;
  if (shown && !memcmp(page, shown, PAGE)) {
    w->layer->unchanged++;
    return 0;
  }
  bool zero = !memcmp(page, zeros, PAGE);
  if (list(w, offset, zero)) return -1;
  if (zero) return 0;
  memcpy(w->out + w->out_pages++ * PAGE, page, PAGE);
  return w->out_pages == BATCH ? flush(w) : 0;
}

/* A run of pages without a gap. */
static int take_run(struct writing *w, uint64_t address, uint64_t offset, size_t pages) {
  struct iovec local = {w->in, pages * PAGE}, remote = {(void *)(uintptr_t)address, pages * PAGE};
  ssize_t n = process_vm_readv(w->source->pid, &local, 1, &remote, 1, 0);
  if (n != (ssize_t)local.iov_len)
    return fail(w->fault, n < 0 ? errno : EIO, "read %zu pages of process %d at %llx: %s", pages, w->source->pid, (unsigned long long)address, n < 0 ? strerror(errno) : "cut short");
  for (size_t i = 0; i < pages; i++)
    if (take(w, w->in + i * PAGE, offset + i * PAGE)) return -1;
  return 0;
}

static int read_entries(int pagemap, uint64_t address, uint64_t *entries, size_t count, struct fault *f) {
  ssize_t n = pread(pagemap, entries, count * sizeof *entries, (off_t)(address / PAGE * sizeof *entries));
  if (n == (ssize_t)(count * sizeof *entries)) return 0;
  return fail(f, n < 0 ? errno : ESRCH, "read pagemap: %s", n < 0 ? strerror(errno) : "the process is gone");
}

static int scan_range(struct writing *w, const struct ram_range *range) {
  w->cursor = 0;
  static _Thread_local uint64_t entries[ENTRIES];
  for (uint64_t at = 0; at < range->length; at += ENTRIES * PAGE) {
    uint64_t left = (range->length - at) / PAGE;
    size_t count = left < ENTRIES ? (size_t)left : ENTRIES;
    if (atomic_load(w->source->cancel)) return fail(w->fault, ECANCELED, "the capture was aborted");
    if (w->source->due_us && now_us() > w->source->due_us) return fail(w->fault, ETIMEDOUT, "the pause was over before the memory was copied");
    if (read_entries(w->pagemap, range->address + at, entries, count, w->fault)) return -1;
    for (size_t i = 0; i < count;) {
      size_t run = i;
      /* segment_at goes forward only: the run's own pages are asked for again by take, from its start. */
      size_t cursor = w->cursor;
      while (run < count && run - i < BATCH && wanted(w, range->guest_offset + at + run * PAGE, entries[run])) run++;
      if (run == i) {
        i++;
        continue;
      }
      w->cursor = cursor;
      if (take_run(w, range->address + at + i * PAGE, range->guest_offset + at + i * PAGE, run - i)) return -1;
      i = run;
    }
  }
  return 0;
}

static int open_pagemap(pid_t pid, struct fault *f) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? fail(f, errno, "open %s: %s", path, strerror(errno)) : fd;
}

int layer_write(const struct layer_source *s, int fd, struct layer *l, struct fault *f) {
  struct writing w = {.source = s, .layer = l, .fd = fd, .fault = f};
  w.pagemap = open_pagemap(s->pid, f);
  if (w.pagemap < 0) return -1;
  w.in = malloc(BATCH * PAGE), w.out = malloc(BATCH * PAGE);
  int result = w.in && w.out ? picture(&w) : fail(f, ENOMEM, "no memory to copy");
  for (uint32_t i = 0; i < s->below->ram_count && result == 0; i++) result = scan_range(&w, &s->below->ram[i]);
  if (result == 0) result = flush(&w);
  free(w.in), free(w.out);
  segments_free(&w.below);
  close(w.pagemap);
  return result;
}

int layer_private_bytes(pid_t pid, const struct graft *below, uint64_t *bytes, struct fault *f) {
  uint64_t entries[512];
  int pagemap = open_pagemap(pid, f), result = pagemap < 0 ? -1 : 0;
  *bytes = 0;
  for (uint32_t i = 0; i < below->ram_count && result == 0; i++) {
    const struct ram_range *r = &below->ram[i];
    for (uint64_t at = 0; at < r->length && result == 0; at += 512 * PAGE) {
      size_t count = (r->length - at) / PAGE < 512 ? (size_t)((r->length - at) / PAGE) : 512;
      result = read_entries(pagemap, r->address + at, entries, count, f);
      for (size_t e = 0; e < count && result == 0; e++) *bytes += is_private(entries[e]) ? PAGE : 0;
    }
  }
  if (pagemap >= 0) close(pagemap);
  return result;
}

void layer_free(struct layer *l) {
  free(l->extents);
  memset(l, 0, sizeof *l);
}
