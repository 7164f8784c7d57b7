/*
 * By PAGEMAP_SCAN (Linux 6.7), which walks page tables in the kernel and tells of runs: a tenth of the time. By the entries of pagemap
 * elsewhere. Both mean the same: present or swapped, and no page of a file nor one that is shared.
 */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PAGE 4096ull
#define ENTRIES 512
#define SPANS (int)(sizeof((struct private_walk *)0)->found / sizeof(struct span))

#define PRESENT_OR_SWAPPED (3ull << 62)
#define FILE_OR_SHARED (1ull << 61)

/* As of linux/fs.h of 6.7. */
struct page_region {
  uint64_t start, end, categories;
};
struct pm_scan_arg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PROTECT 3 /* and fail where there is nothing to protect by */
#define IS_WRITTEN (1 << 1)
#define IS_FILE (1 << 2)
#define IS_PRESENT (1 << 3)
#define IS_SWAPPED (1 << 4)

static bool no_scan; /* once the kernel has said so */

int private_open(pid_t pid, struct fault *f) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? fail(f, errno, "open %s: %s", path, strerror(errno)) : fd;
}

void private_begin(struct private_walk *w, int pagemap, uint64_t start, uint64_t end) {
  w->pagemap = pagemap;
  w->by_entries = no_scan;
  w->kind = PRIVATE;
  w->at = start, w->end = end;
  w->count = w->next = 0;
}

static void found(struct private_walk *w, uint64_t start, uint64_t end) {
  struct span *last = w->count ? &w->found[w->count - 1] : NULL;
  if (last && last->end == start) last->end = end;
  else w->found[w->count++] = (struct span){start, end};
}

static int read_entries(int pagemap, uint64_t address, uint64_t *entries, size_t count, struct fault *f) {
  ssize_t n = pread(pagemap, entries, count * sizeof *entries, (off_t)(address / PAGE * sizeof *entries));
  if (n == (ssize_t)(count * sizeof *entries)) return 0;
  return fail(f, n < 0 ? errno : ESRCH, "read pagemap: %s", n < 0 ? strerror(errno) : "the process is gone");
}

static int by_entries(struct private_walk *w, struct fault *f) {
  uint64_t entries[ENTRIES], left = (w->end - w->at) / PAGE;
  size_t count = left < ENTRIES ? (size_t)left : ENTRIES, i = 0;
  if (w->kind != PRIVATE) return fail(f, ENOTSUP, "this kernel does not tell which pages were written");
  if (read_entries(w->pagemap, w->at, entries, count, f)) return -1;
  for (; i < count && w->count < SPANS; i++)
    if ((entries[i] & PRESENT_OR_SWAPPED) && !(entries[i] & FILE_OR_SHARED)) found(w, w->at + i * PAGE, w->at + (i + 1) * PAGE);
  w->at += i * PAGE;
  return 0;
}

/* 1: this kernel cannot. */
static int by_scan(struct private_walk *w, struct fault *f) {
  struct page_region regions[sizeof w->found / sizeof *w->found];
  struct pm_scan_arg arg = {.size = sizeof arg, .start = w->at, .end = w->end, .vec = (uintptr_t)regions, .vec_len = (uint64_t)SPANS};
  arg.category_anyof_mask = IS_PRESENT | IS_SWAPPED;
  if (w->kind == PRIVATE) arg.category_inverted = arg.category_mask = arg.return_mask = IS_FILE;
  else arg.category_mask = arg.return_mask = IS_WRITTEN;
  if (w->kind == WRITTEN_PROTECT) arg.flags = PROTECT;
  int n;
  do n = ioctl(w->pagemap, SCAN, &arg);
  while (n < 0 && errno == EINTR);
  if (n < 0 && errno == ENOTTY) return 1;
  if (n < 0) return fail(f, errno, "scan pagemap: %s", strerror(errno));
  if (arg.walk_end <= w->at || arg.walk_end > w->end) return fail(f, EIO, "a scan of pagemap ended at %llx", (unsigned long long)arg.walk_end);
  for (int i = 0; i < n; i++) found(w, regions[i].start, regions[i].end);
  w->at = arg.walk_end;
  /* A process that is gone has no page; of that nothing but a read tells. */
  uint64_t entry;
  return w->at < w->end ? 0 : read_entries(w->pagemap, w->end - PAGE, &entry, 1, f);
}

int private_next(struct private_walk *w, struct span *s, struct fault *f) {
  while (w->next == w->count && w->at < w->end) {
    w->count = w->next = 0;
    int result = w->by_entries ? 1 : by_scan(w, f);
    if (result > 0 && !w->by_entries) w->by_entries = no_scan = true;
    if (result < 0 || (result > 0 && by_entries(w, f))) return -1;
  }
  if (w->next == w->count) return 0;
  *s = w->found[w->next++];
  return 1;
}
