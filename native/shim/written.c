/*
 * The kernel write-protects pages for userfaultfd and lets a write to one through at once, with no more trace than that the page's protection is
 * gone (UFFD_FEATURE_WP_ASYNC, Linux 6.7); PAGEMAP_SCAN tells which are without, and protects them again in the same step. A page that is still
 * protected has not been written. What was pinned before, and is written without a fault after, goes unnoticed: no VMM here opens its drives with
 * O_DIRECT, or registers guest memory with a device of the host.
 *
 * The descriptor is this process's alone: with it the protection goes, and a successor begins anew.
 */
#define _GNU_SOURCE
#include "written.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "private.h"

#define PAGE 4096ull
/* As of linux/userfaultfd.h of 6.7. */
#define USER_MODE_ONLY 1
#define FEATURE_WP_ASYNC (1ull << 15)

static struct {
  int fd; /* -1: nothing is noticed */
  bool cannot;
  uint8_t *bits, *lately;
  size_t bytes;
  uint64_t late_pages;
  char *link; /* what the bits are relative to; NULL: to nothing */
} noticed = {.fd = -1};

void written_forget(void) {
  if (noticed.fd >= 0) close(noticed.fd);
  noticed.fd = -1;
  free(noticed.bits), free(noticed.lately), free(noticed.link);
  noticed.bits = noticed.lately = NULL, noticed.link = NULL;
}

bool written_noticed(void) { return noticed.fd >= 0; }

/* A userfaultfd of the VMM's memory, which only the VMM can make. In *fd, -1 where the kernel gives none. */
static int of_vmm(struct inject *in, int *fd) {
  int64_t there, closed;
  *fd = -1;
  if (inject_call(in, &there, SYS_userfaultfd, O_CLOEXEC | USER_MODE_ONLY, 0, 0, 0, 0, 0)) return -1;
  if (there < 0) return errno = (int)-there, 0;
  *fd = (int)syscall(SYS_pidfd_getfd, vmm.pidfd, (int)there, 0);
  int error = errno;
  if (inject_call(in, &closed, SYS_close, (uint64_t)there, 0, 0, 0, 0, 0)) return -1;
  errno = error;
  return 0;
}

static int watch(int fd, const struct graft *g) {
  struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_WP_ASYNC};
  if (ioctl(fd, UFFDIO_API, &api)) return -1;
  for (uint32_t i = 0; i < g->ram_count; i++) {
    struct uffdio_register range = {.range = {g->ram[i].address, g->ram[i].length}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(fd, UFFDIO_REGISTER, &range)) return -1;
  }
  return 0;
}

static size_t bytes_of(const struct graft *g) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < g->ram_count; i++)
    if (g->ram[i].guest_offset + g->ram[i].length > end) end = g->ram[i].guest_offset + g->ram[i].length;
  return (size_t)(end / PAGE / 8 + 1);
}

int written_begin(struct inject *in, const struct graft *g) {
  if (noticed.fd >= 0 || noticed.cannot) return 0;
  if (of_vmm(in, &noticed.fd)) {
    written_forget();
    return -1;
  }
  noticed.bytes = bytes_of(g);
  if (noticed.fd >= 0 && watch(noticed.fd, g) == 0 && (noticed.bits = calloc(1, noticed.bytes)) && (noticed.lately = calloc(1, noticed.bytes))) return 0;
  note("writes of the VMM cannot be noticed (%s): each branch compares all that it has for itself", strerror(errno));
  noticed.cannot = true;
  written_forget();
  return 0;
}

static void mark(uint64_t page) {
  noticed.bits[page / 8] |= (uint8_t)(1 << page % 8);
  noticed.lately[page / 8] |= (uint8_t)(1 << page % 8);
  noticed.late_pages++;
}

/* What is without protection has been written, or is a page of a file that was mapped lately: those are not the VMM's own. */
static int add_range(int pagemap, const struct ram_range *r, bool protect, struct fault *f) {
  struct private_walk bare, own;
  struct span s, o;
  int more, inner = 0;
  private_begin(&bare, pagemap, r->address, r->address + r->length);
  bare.kind = protect ? WRITTEN_PROTECT : WRITTEN;
  while ((more = private_next(&bare, &s, f)) > 0) {
    private_begin(&own, pagemap, s.start, s.end);
    while ((inner = private_next(&own, &o, f)) > 0)
      for (uint64_t at = o.start; at < o.end; at += PAGE) mark((at - r->address + r->guest_offset) / PAGE);
    if (inner < 0) return -1;
  }
  return more;
}

static void add(const struct graft *g, bool protect) {
  struct fault f;
  if (noticed.fd < 0) return;
  memset(noticed.lately, 0, noticed.bytes);
  noticed.late_pages = 0;
  int pagemap = private_open(vmm.pid, &f), result = pagemap < 0 || bytes_of(g) != noticed.bytes ? -1 : 0;
  for (uint32_t i = 0; i < g->ram_count && result == 0; i++) result = add_range(pagemap, &g->ram[i], protect, &f);
  if (pagemap >= 0) close(pagemap);
  if (result) written_forget();
}

void written_take(const struct graft *g) { add(g, true); }
void written_look(const struct graft *g) { add(g, false); }

const uint8_t *written_since(const char *link) {
  return noticed.link && link && *link && !strcmp(noticed.link, link) ? noticed.bits : NULL;
}

const uint8_t *written_lately(uint64_t *pages) {
  *pages = noticed.late_pages;
  return noticed.lately;
}

void written_linked(const char *link) {
  if (noticed.fd < 0) return;
  free(noticed.link);
  noticed.link = *link ? strdup(link) : NULL;
  memset(noticed.bits, 0, noticed.bytes);
}
