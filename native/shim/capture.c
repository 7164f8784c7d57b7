/* Requests of a capture, and their replies: in the loop. See capture.h. */
#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "private.h"
#include "written.h"

/*
 * From so much memory of its own on, the VMM's writes are noticed: to copy or to compare less costs less than what the VMM pays, a fault for each
 * page that it reads for the first time instead of one for sixteen.
 */
#define NOTICE_FROM (4ull << 20)

struct capture cap = {.file = -1};

bool capture_active(void) { return cap.state != NONE; }
bool capture_takes_children(void) { return cap.state == FREEZING; }
int capture_poll(void) { return cap.state > PREPARED && !cap.expired ? cap.done[0] : -1; }

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
  free(cap.plan.layer), free(cap.plan.id), free(cap.plan.since);
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

/* Bytes of guest RAM that the VMM has for itself. */
static int private_bytes(const struct graft *below, uint64_t *bytes, struct fault *f) {
  int pagemap = private_open(vmm.pid, f), more = 0;
  *bytes = 0;
  if (pagemap < 0) return -1;
  for (uint32_t i = 0; i < below->ram_count && more == 0; i++) {
    const struct ram_range *r = &below->ram[i];
    struct private_walk walk;
    struct span own;
    private_begin(&walk, pagemap, r->address, r->address + r->length);
    while ((more = private_next(&walk, &own, f)) > 0) *bytes += own.end - own.start;
  }
  close(pagemap);
  return more;
}

static int ready(uint64_t *bytes, struct fault *f) {
  if (cap.plan.layer[0] != '/') return fail(f, EINVAL, "layer %.200s is no absolute path", cap.plan.layer);
  if (graft_check(&cap.plan.below, f) || graft_open_files(&cap.plan.below, f)) return -1;
  if (private_bytes(&cap.plan.below, bytes, f)) return -1;
  if (cap.plan.live && make_forkable(&cap.plan.below, *bytes >= NOTICE_FROM, f)) return -1;
  if (!cap.plan.live && abilities.bits & CAN_INJECTION) notice_writes(&cap.plan.below);
  written_take(&cap.plan.below);
  cap.file = open(cap.plan.layer, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  return cap.file < 0 ? fail(f, errno, "make layer %.200s: %s", cap.plan.layer, strerror(errno)) : 0;
}

int capture_prepare(struct conn *owner, struct capture_plan *plan, struct writer *answer, struct fault *f) {
  if (cap.state != NONE) {
    graft_free(&plan->below);
    free(plan->layer), free(plan->id), free(plan->since);
    return fail(f, EBUSY, "a capture of this VMM is under way");
  }
  cap.plan = *plan;
  cap.owner = owner;
  cap.state = PREPARED;
  bool possible = abilities.bits & CAN_INJECTION;
  const char *reason = cap.plan.live && !possible ? abilities.reason : "";
  cap.plan.live = cap.plan.live && possible;
  uint64_t bytes = 0;
  if (ready(&bytes, f)) {
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
  int error = pthread_create(&cap.thread, NULL, capture_thread, NULL);
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
  put_u32(&w, (uint32_t)(cap.took_us + cap.early_us));
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
  if (fits) written_linked(cap.plan.id);
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
