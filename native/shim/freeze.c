/*
 * The thread of a capture. Live: while the VMM is paused its main thread is borrowed for one clone, a stopped process that shares every page copy
 * on write; what it shows is copied after the VMM has resumed. Otherwise its private pages are copied in the pause.
 */
#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "written.h"

/* A pause must not become longer than this by a VMM that does not stop. */
#define FREEZE_MS 1000
#define CLOSE_MS 1000
/* A copy before the pause that takes longer is given up: then all is copied in the pause, as far as that allows it. */
#define EARLY_US 5000000
#define FEW_PAGES 256 /* a millisecond of the pause */
#define MANY_PAGES 1024

static int clone_body(struct inject *in, void *arg) {
  (void)arg;
  if (inject_clone(in, &cap.clone)) return -1;
  cap.clone_pidfd = (int)syscall(SYS_pidfd_open, cap.clone, 0);
  cap.frozen = *in;
  return cap.clone_pidfd < 0 ? fail(in->fault, errno, "pidfd of the clone: %s", strerror(errno)) : 0;
}

/* ---- what is copied before the pause ---- */

static struct layer_source source_of(pid_t pid, const uint8_t *written, int64_t due_us) {
  return (struct layer_source){pid, &cap.plan.below, cap.plan.origin, written, &cap.cancel, due_us};
}

static int forget_early(void) {
  layer_free(&cap.layer);
  cap.early = false;
  return ftruncate(cap.file, 0) ? fail(&cap.fault, errno, "empty the layer: %s", strerror(errno)) : 0;
}

/*
 * Where the VMM's writes are noticed: a first copy while the guest runs, then what it has written meanwhile, until that is little. In the pause
 * only what was written since is left to copy. Pages that were torn are among those. *left: how much is still to come, at least.
 */
static int write_early(struct layer_source *source, uint64_t *left) {
  if (layer_write(source, cap.file, &cap.layer, &cap.fault)) return -1;
  for (uint64_t last = UINT64_MAX;; last = *left) {
    written_take(&cap.plan.below);
    source->written = written_lately(left);
    if (!source->written) return fail(&cap.fault, ETIMEDOUT, "writes are not noticed any more");
    if (layer_rewrite(source, cap.file, &cap.layer, &cap.fault)) return -1;
    if (*left <= FEW_PAGES || *left > last / 2) return 0; /* or the guest writes as fast as they are copied */
  }
}

/* Then a clone is made only where it is better than a pause that is longer for what is left to copy. */
static int copy_early(void) {
  int64_t began = now_us();
  struct layer_source source = source_of(vmm.pid, written_since(cap.plan.since), began + EARLY_US);
  uint64_t left = 0;
  if (!written_noticed()) return 0;
  cap.early = true;
  int result = write_early(&source, &left);
  cap.early_us = now_us() - began;
  if (result && cap.fault.code != ETIMEDOUT) return -1;
  if (result) return forget_early();
  cap.spared = cap.plan.live && left <= FEW_PAGES;
  if (cap.spared) cap.plan.live = false;
  return 0;
}

/* ---- in the pause ---- */

/* After the freeze: what the VMM has written by now may have been written before it. */
static int write_layer_of(pid_t pid) {
  uint64_t pages;
  written_look(&cap.plan.below);
  int64_t due_us = pid == vmm.pid ? cap.pause.due_us : 0;
  const uint8_t *lately = cap.early ? written_lately(&pages) : NULL;
  struct layer_source source = source_of(pid, lately ? lately : written_since(cap.plan.since), due_us);
  if (lately) return layer_rewrite(&source, cap.file, &cap.layer, &cap.fault);
  if (cap.early && forget_early()) return -1;
  return layer_write(&source, cap.file, &cap.layer, &cap.fault);
}

/* More may have been written since than was to be expected: a clone after all. */
static void spare_no_more(void) {
  uint64_t pages;
  if (!cap.spared) return;
  written_look(&cap.plan.below);
  cap.plan.live = !written_lately(&pages) || pages > MANY_PAGES;
}

static int freeze_memory(void) {
  spare_no_more();
  if (!cap.plan.live) return write_layer_of(vmm.pid);
  struct ended e = {false, 0};
  int result = inject_here(vmm.pid, INJECT_SUSPEND_FILTER, FREEZE_MS, clone_body, NULL, &cap.fault, &e);
  cap.vmm_gone = e.ended, cap.vmm_status = e.status;
  return result;
}

/* Where the VMM has nothing left to do for its device state: the main thread stands at the entry of an open. */
static int at_open(struct inject *in, void *arg) { return cap.plan.live ? clone_body(in, arg) : write_layer_of(vmm.pid); }

static int give_command(void *arg) {
  (void)arg;
  return monitor_send(&cap.pause.monitor, pause_frozen_command(&cap.pause), &cap.fault);
}

static int freeze_at_open(void) {
  struct pause *p = &cap.pause;
  struct awaited_open at = {.path = p->freeze_at, .begin = give_command, .answered = p->monitor.fd};
  struct ended e = {false, 0};
  int64_t left = (p->due_us - now_us()) / 1000;
  unsigned flags = cap.plan.live ? INJECT_SUSPEND_FILTER : 0;
  int result = inject_at_open(vmm.pid, flags, left < 1 ? 1 : (int)left, &at, at_open, NULL, &cap.fault, &e);
  cap.vmm_gone = e.ended, cap.vmm_status = e.status;
  if (result && !at.answered_first) return -1;
  if (monitor_answer(&p->monitor, &p->answer, p->due_us, &cap.fault)) return -1;
  if (!result) return 0;
  int length = p->answer.length > 160 ? 160 : (int)p->answer.length;
  return fail(&cap.fault, EPROTO, "the VMM did not open \"%.100s\"; it answered %u %.*s", p->freeze_at, p->answer.status, length, p->answer.text);
}

static int freeze(void) {
  if (!cap.pause.socket) return freeze_memory();
  return pause_around(&cap.pause, *cap.pause.freeze_at ? freeze_at_open : freeze_memory, &cap.fault);
}

/* Should memory run out, the clone goes first: nobody but this capture loses by it. */
static void expose_to_oom(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/oom_score_adj", cap.clone);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "1000", 4) < 0) note("oom_score_adj of clone %d: %s", cap.clone, strerror(errno));
  if (fd >= 0) close(fd);
}

static int copy_clone(void) {
  expose_to_oom();
  /* Its inherited descriptors would keep the VMM's sockets, taps and image locks beyond the VMM's end. */
  int result = inject_close_all(cap.clone, &cap.frozen, INJECT_SUSPEND_FILTER, CLOSE_MS, &cap.fault);
  if (result == 0) result = write_layer_of(cap.clone);
  struct pollfd alive = {cap.clone_pidfd, POLLIN, 0};
  return poll(&alive, 1, 0) == 0 ? result : fail(&cap.fault, ESRCH, "the clone died while its memory was copied");
}

static void done(int64_t began) {
  cap.took_us = now_us() - began;
  if (write(cap.done[1], "", 1) != 1) note("capture: %s", strerror(errno));
}

void *capture_thread(void *arg) {
  (void)arg;
  int64_t until = now_us() + (int64_t)cap.plan.below.timeout_ms * 1000;
  /* A pause that somebody else makes has begun. */
  cap.outcome = cap.plan.patient && cap.pause.socket ? copy_early() : 0;
  int64_t began = now_us();
  if (cap.outcome == 0) cap.outcome = freeze();
  done(began);
  if (cap.outcome) return NULL;
  struct pollfd command = {cap.command[0], POLLIN, 0};
  char word = 0;
  for (int64_t left; (left = until - now_us()) > 0;) {
    int n = poll(&command, 1, left > 3600000000 ? 3600000 : (int)(left / 1000) + 1);
    if (n > 0 && read(cap.command[0], &word, 1) >= 0) break;
  }
  if (word == 'c') {
    began = now_us();
    if (cap.plan.live) cap.outcome = copy_clone();
  }
  if (cap.clone > 0) {
    kill(cap.clone, SIGKILL);
    waitpid(cap.clone, NULL, __WALL); /* the loop may have been first */
  }
  if (word != 'c') cap.outcome = fail(&cap.fault, ETIMEDOUT, "the capture was not copied before its deadline of %u ms", cap.plan.below.timeout_ms);
  done(began);
  return NULL;
}
