/*
 * Before a pause: what the clone of a VMM is to have. Guest RAM, and the vdso, from which the one call comes that a clone ever makes. All else
 * is kept from it: the fork copies no page tables of translated code, heap and libraries, and the VMM, back from the pause, pays no fault for each
 * page of them that it writes. Without DONTFORK a pause took 3 ms more, and the answer to `cont` another one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "inject.h"
#include "written.h"

/* The main thread is borrowed for so long, while the guest runs. */
#define PREPARE_MS 1000
#define LOWEST 0x10000ull
#define HIGHEST 0x7ffffffff000ull

bool ram_forkable;

struct part {
  uint64_t start, end;
};
struct kept {
  struct part parts[64];
  int count;
  uint64_t thread; /* the main thread's own data */
};

/*
 * The kernel writes into a thread's own data whenever it comes back to user space (restartable sequences): a clone without it would not come that
 * far.
 */
static bool see(const struct mapping *m, void *arg) {
  struct kept *k = arg;
  bool wanted = !strcmp(m->name, "[vdso]") || (m->start <= k->thread && k->thread < m->end);
  if (wanted && k->count < 64) k->parts[k->count++] = (struct part){m->start, m->end};
  return true;
}

static int by_start(const void *a, const void *b) {
  uint64_t x = ((const struct part *)a)->start, y = ((const struct part *)b)->start;
  return x < y ? -1 : x > y;
}

/* In order of addresses. */
static int list_kept(const struct graft *g, struct kept *k, struct fault *f) {
  if (g->ram_count > 60) return fail(f, EINVAL, "guest RAM has %u ranges", g->ram_count);
  k->count = 0;
  for (uint32_t i = 0; i < g->ram_count; i++) k->parts[k->count++] = (struct part){g->ram[i].address, g->ram[i].address + g->ram[i].length};
  if (maps_each(vmm.pid, see, k, f)) return -1;
  qsort(k->parts, (size_t)k->count, sizeof *k->parts, by_start);
  return 0;
}

/* QEMU marks guest RAM DONTFORK. */
static int fork_ram(struct inject *in, const struct graft *g) {
  for (uint32_t i = 0; i < g->ram_count; i++) {
    int64_t result;
    if (inject_call(in, &result, SYS_madvise, g->ram[i].address, g->ram[i].length, MADV_DOFORK, 0, 0, 0)) return -1;
    if (result < 0) return fail(in->fault, (int)-result, "madvise of guest RAM: %s", strerror((int)-result));
  }
  return 0;
}

/* One call for each gap between what is kept: it goes over what is mapped there, and tells with ENOMEM that not all of it is. */
static int fork_nothing_else(struct inject *in, const struct kept *k) {
  uint64_t from = LOWEST;
  for (int i = 0; i <= k->count; i++) {
    uint64_t to = i < k->count ? k->parts[i].start : HIGHEST;
    int64_t result = 0;
    if (to > from && inject_call(in, &result, SYS_madvise, from, to - from, MADV_DONTFORK, 0, 0, 0)) return -1;
    if (result < 0 && result != -ENOMEM) return fail(in->fault, (int)-result, "madvise of what is not guest RAM: %s", strerror((int)-result));
    if (i < k->count) from = k->parts[i].end;
  }
  return 0;
}

struct preparation {
  const struct graft *below;
  bool notice;
};

static int body(struct inject *in, void *arg) {
  const struct preparation *p = arg;
  const struct graft *g = p->below;
  struct kept k = {.thread = in->resume.fs_base};
  if (!ram_forkable && fork_ram(in, g)) return -1;
  if (p->notice && written_begin(in, g)) return -1;
  return list_kept(g, &k, in->fault) ? -1 : fork_nothing_else(in, &k);
}

/* Before each pause: the VMM has mapped more since the last one. What is marked already costs next to nothing. */
int make_forkable(const struct graft *below, bool notice, struct fault *f) {
  struct preparation p = {below, notice};
  if (inject_run(vmm.pid, INJECT_SUSPEND_FILTER, PREPARE_MS, body, &p, f)) return -1;
  ram_forkable = true;
  return 0;
}

static int notice_body(struct inject *in, void *arg) { return written_begin(in, arg); }

void notice_writes(const struct graft *below) {
  struct fault f;
  if (written_noticed()) return;
  if (inject_run(vmm.pid, INJECT_SUSPEND_FILTER, PREPARE_MS, notice_body, (void *)(uintptr_t)below, &f)) note("writes are not noticed: %s", f.text);
}
