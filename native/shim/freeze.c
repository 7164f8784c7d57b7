/*
 * Capture of a running VMM's memory. Live: while it is paused its main thread is borrowed for one clone, a stopped process that shares every page
 * copy on write; what it shows is copied after the VMM has resumed. Otherwise its private pages are copied in the pause.
 *
 * One thread does a capture from the freeze to the end, since only the thread that traces the clone may hold it. The loop goes on meanwhile:
 * it has a resume recipe to keep.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inject.h"
#include "layer.h"
#include "pause.h"

/* A pause must not become longer than this by a VMM that does not stop. */
#define FREEZE_MS 1000
#define CLOSE_MS 1000

static struct {
  enum { NONE, PREPARED, FREEZING, FROZEN, COPYING } state;
  struct capture_plan plan;
  struct pause pause;
  int file;
  struct conn *owner;
  uint32_t id; /* of the request that waits for its reply */
  pthread_t thread;
  bool started, expired;
  int command[2], done[2];
  atomic_bool cancel;
  /* Written by the thread, read when it has said that it is done. */
  struct inject frozen; /* the session that made the clone */
  pid_t clone;
  int clone_pidfd;
  struct layer layer;
  struct fault fault;
  int outcome;
  int64_t took_us;
  bool vmm_gone;
  int vmm_status;
} cap = {.file = -1};

bool capture_active(void) { return cap.state != NONE; }
bool capture_takes_children(void) { return cap.state == FREEZING; }
int capture_poll(void) { return cap.state > PREPARED && !cap.expired ? cap.done[0] : -1; }

/* ---- in the capture's thread ---- */

static int clone_body(struct inject *in, void *arg) {
  (void)arg;
  if (inject_clone(in, &cap.clone)) return -1;
  cap.clone_pidfd = (int)syscall(SYS_pidfd_open, cap.clone, 0);
  cap.frozen = *in;
  return cap.clone_pidfd < 0 ? fail(in->fault, errno, "pidfd of the clone: %s", strerror(errno)) : 0;
}

static int write_layer_of(pid_t pid) {
  struct layer_source source = {pid, &cap.plan.below, cap.plan.origin, &cap.cancel, pid == vmm.pid ? cap.pause.due_us : 0};
  return layer_write(&source, cap.file, &cap.layer, &cap.fault);
}

static int freeze_memory(void) {
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

static void *capture(void *arg) {
  (void)arg;
  int64_t began = now_us(), until = began + (int64_t)cap.plan.below.timeout_ms * 1000;
  cap.outcome = freeze();
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

/* ---- in the loop ---- */

/* Ends the thread and forgets all. A layer that is not wanted goes. */
static void finish(bool keep) {
  bool gone = false;
  int status = 0;
  if (cap.started) {
    atomic_store(&cap.cancel, true);
    close(cap.command[1]);
    pthread_join(cap.thread, NULL);
    close(cap.command[0]), close(cap.done[0]), close(cap.done[1]);
    if (cap.clone_pidfd > 0) close(cap.clone_pidfd);
    gone = cap.vmm_gone, status = cap.vmm_status;
  }
  if (cap.file >= 0) {
    close(cap.file);
    if (!keep) unlink(cap.plan.layer);
  }
  graft_close_files(&cap.plan.below);
  graft_free(&cap.plan.below);
  free(cap.plan.layer);
  pause_free(&cap.pause);
  layer_free(&cap.layer);
  memset(&cap, 0, sizeof cap);
  cap.file = -1;
  if (gone) vmm_ended(status);
}

void capture_abort(void) {
  struct fault f = {ECANCELED, "the capture was aborted"};
  struct conn *owner = cap.owner;
  uint32_t id = cap.id, type = cap.state == FREEZING ? SF_CAPTURE_FREEZE : cap.state == COPYING ? SF_CAPTURE_COPY : 0;
  if (cap.state == NONE) return;
  finish(false);
  if (type) send_failure(owner, type, id, &f); /* the request that waited */
}

void capture_owner_gone(struct conn *owner) {
  if (cap.state == NONE || cap.owner != owner) return;
  note("the daemon's connection has closed amid a capture: it is aborted");
  finish(false);
}

static int ready(struct fault *f) {
  if (cap.plan.layer[0] != '/') return fail(f, EINVAL, "layer %.200s is no absolute path", cap.plan.layer);
  if (graft_check(&cap.plan.below, f) || graft_open_files(&cap.plan.below, f)) return -1;
  if (cap.plan.live && make_forkable(&cap.plan.below, f)) return -1;
  cap.file = open(cap.plan.layer, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  return cap.file < 0 ? fail(f, errno, "make layer %.200s: %s", cap.plan.layer, strerror(errno)) : 0;
}

int capture_prepare(struct conn *owner, struct capture_plan *plan, struct writer *answer, struct fault *f) {
  if (cap.state != NONE) {
    graft_free(&plan->below);
    free(plan->layer);
    return fail(f, EBUSY, "a capture of this VMM is under way");
  }
  cap.plan = *plan;
  cap.owner = owner;
  cap.state = PREPARED;
  bool possible = abilities.bits & CAN_INJECTION;
  const char *reason = cap.plan.live && !possible ? abilities.reason : "";
  cap.plan.live = cap.plan.live && possible;
  uint64_t bytes = 0;
  if (ready(f) || layer_private_bytes(vmm.pid, &cap.plan.below, &bytes, f)) {
    finish(false);
    return -1;
  }
  put_u32(answer, cap.plan.live);
  put_u32(answer, 0);
  put_u64(answer, bytes);
  put_str(answer, reason, strlen(reason));
  return 0;
}

static int wrong_state(const struct conn *owner, int wanted, struct fault *f) {
  if (vmm.ended) return fail(f, ESRCH, "the VMM has ended");
  if (cap.state != (unsigned)wanted || cap.owner != owner) return fail(f, EPROTO, "a capture goes prepare, freeze, copy; this is out of order");
  return 0;
}

int capture_freeze(struct conn *owner, uint32_t id, struct reader *r, struct fault *f) {
  if (wrong_state(owner, PREPARED, f)) return -1;
  /* Nothing for a pause that somebody else makes; else its steps. */
  if (r->at != r->end && pause_read(&cap.pause, r, f)) {
    finish(false);
    return -1;
  }
  cap.pause.cancel = &cap.cancel;
  if (pipe2(cap.command, O_CLOEXEC)) return fail(f, errno, "pipe: %s", strerror(errno));
  if (pipe2(cap.done, O_CLOEXEC)) {
    close(cap.command[0]), close(cap.command[1]);
    return fail(f, errno, "pipe: %s", strerror(errno));
  }
  int error = pthread_create(&cap.thread, NULL, capture, NULL);
  if (error) {
    close(cap.command[0]), close(cap.command[1]), close(cap.done[0]), close(cap.done[1]);
    return fail(f, error, "start a thread: %s", strerror(error));
  }
  cap.started = true;
  cap.state = FREEZING;
  cap.id = id;
  return 0;
}

int capture_copy(struct conn *owner, uint32_t id, struct fault *f) {
  if (cap.expired && cap.owner == owner) {
    *f = cap.fault;
    finish(false);
    return -1;
  }
  /* The VMM may have ended since: what was frozen is whole. */
  if (cap.state != FROZEN || cap.owner != owner) return wrong_state(owner, FROZEN, f) ? -1 : fail(f, EPROTO, "nothing is frozen");
  if (write(cap.command[1], "c", 1) != 1) return fail(f, errno, "start the copy: %s", strerror(errno));
  cap.state = COPYING;
  cap.id = id;
  return 0;
}

static void reply_frozen(void) {
  struct writer w = {0};
  cap.state = FROZEN;
  put_u32(&w, (uint32_t)cap.took_us);
  put_u32(&w, (uint32_t)cap.pause.steps);
  for (int i = 0; i < cap.pause.steps; i++) put_u32(&w, cap.pause.took_us[i]);
  put_u32(&w, cap.pause.answer.status);
  put_str(&w, cap.pause.answer.text, cap.pause.answer.length);
  send_reply(cap.owner, SF_CAPTURE_FREEZE, cap.id, &w);
  free(w.data);
}

static void reply_copied(void) {
  struct writer w = {0};
  struct layer *l = &cap.layer;
  put_u32(&w, (uint32_t)cap.took_us);
  put_u32(&w, (uint32_t)l->count);
  put_u64(&w, l->bytes);
  put_u64(&w, l->compared);
  put_u64(&w, l->unchanged);
  for (size_t i = 0; i < l->count; i++) {
    put_u32(&w, l->extents[i].guest_page);
    put_u32(&w, l->extents[i].pages);
    put_u32(&w, l->extents[i].file_page);
  }
  struct conn *owner = cap.owner;
  uint32_t id = cap.id;
  bool fits = w.length <= SHIM_MAX_PAYLOAD;
  finish(fits);
  struct fault f = {E2BIG, "the layer has more extents than a reply holds"};
  if (fits) send_reply(owner, SF_CAPTURE_COPY, id, &w);
  else send_failure(owner, SF_CAPTURE_COPY, id, &f);
  free(w.data);
}

void capture_step(void) {
  char byte;
  if (capture_poll() < 0 || read(cap.done[0], &byte, 1) != 1) return;
  if (cap.state == FROZEN) {
    cap.expired = true; /* told when the copy is asked for */
    note("%s", cap.fault.text);
  } else if (cap.outcome) {
    struct conn *owner = cap.owner;
    uint32_t id = cap.id, type = cap.state == FREEZING ? SF_CAPTURE_FREEZE : SF_CAPTURE_COPY;
    struct fault f = cap.fault;
    finish(false);
    send_failure(owner, type, id, &f);
  } else if (cap.state == FREEZING) reply_frozen();
  else reply_copied();
}
