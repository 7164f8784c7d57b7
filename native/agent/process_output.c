/* What processes write: read into their rings, as fast as a lossless reader allows. */
#include "process.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
  REST_MS = 10, /* between two helpings of output that is thrown away: an endless writer costs the agent little */
};

static uint8_t scratch[READ_AT_ONCE]; /* main thread only */

static void rested(struct timer *t);
static struct timer rest_timer = { .fire = rested };

static void watch_output(struct output *o, bool on) {
  if (o->watching == on || o->watched.fd < 0)
    return;
  /* Out of the loop rather than without events: a hang-up is reported whatever was asked for. */
  if (!on)
    loop_remove(&o->watched);
  else if (loop_add(&o->watched, EPOLLIN) < 0)
    return;
  o->watching = on;
}

static bool claimed(const struct process *p) {
  return p->lossless && session_present();
}

/* How many bytes may be read without overwriting what a lossless reader still needs. */
static size_t room(const struct output *o) {
  const struct process *p = o->process;
  if (!claimed(p))
    return o->ring.capacity;
  uint64_t unread = o->ring.end - slot_acknowledged(p->lossless->slot, (int)(o - p->output) + 1);
  return unread < o->ring.capacity ? o->ring.capacity - (size_t)unread : 0;
}

/* Nothing more comes that belongs to the call. */
static void finish_output(struct output *o) {
  struct process *p = o->process;
  o->ended = true;
  o->waiting = false;
  for (struct reader *r = p->readers; r; r = r->next)
    if (r->opened && !r->done)
      slot_end(r->slot, (int)(o - p->output) + 1);
}

static void hold(struct output *o) {
  o->held = true;
  finish_output(o);
  watch_output(o, true);
}

void output_close(struct output *o) {
  if (o->watched.fd < 0)
    return;
  watch_output(o, false);
  close(o->watched.fd);
  o->watched.fd = -1;
  o->waiting = o->resting = false;
}

static void discard(struct output *o) {
  ssize_t n = read(o->watched.fd, scratch, sizeof scratch);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (n <= 0) {
    output_close(o);
    process_forget(o->process);
    return;
  }
  watch_output(o, false);
  o->resting = true;
  if (rest_timer.at_ms == 0)
    timer_set(&rest_timer, REST_MS);
}

static void read_output(struct output *o) {
  struct process *p = o->process;
  size_t most = room(o);
  if (most == 0) {
    watch_output(o, false);
    o->waiting = true; /* until the reader's slot is writable, which also tells that its host has been gone too long */
    return;
  }
  ssize_t n = read(o->watched.fd, scratch, most < sizeof scratch ? most : sizeof scratch);
  if (n > 0) {
    ring_make_room(&o->ring, (size_t)n);
    ring_write(&o->ring, scratch, (size_t)n);
    for (struct reader *r = p->readers; r; r = r->next)
      if (r->opened && !r->done)
        slot_kick(r->slot);
    o->owed = o->owed > (size_t)n ? o->owed - (uint32_t)n : 0;
    if (p->grace_over && o->owed == 0)
      hold(o);
  } else if (n < 0 && errno == EINTR) {
    return;
  } else if (n < 0 && errno == EAGAIN) {
    if (p->grace_over)
      hold(o);
  } else { /* the end; a pty says EIO */
    output_close(o);
    finish_output(o);
  }
  process_settle(p);
}

static void output_ready(struct watched *w, uint32_t events) {
  struct output *o = (struct output *)(void *)w;
  (void)events;
  if (o->watched.fd < 0 || !o->watching)
    return;
  if (o->ended)
    discard(o);
  else
    read_output(o);
}

void output_start(struct output *o, int fd) {
  o->watched.fd = fd;
  o->watched.ready = output_ready;
  watch_output(o, true);
}

void output_resume(struct process *p) {
  for (int i = 0; i < p->outputs; i++) {
    struct output *o = &p->output[i];
    if (o->waiting && room(o) > 0) {
      o->waiting = false;
      watch_output(o, true);
    }
  }
}

void output_owe(struct output *o) {
  int pending = 0;
  if (o->ended)
    return;
  if (o->process->pty) /* part of it may still be on its way between the two ends, where nobody counts it */
    o->owed = PTY_HOLDS;
  else if (ioctl(o->watched.fd, FIONREAD, &pending) == 0 && pending > 0)
    o->owed = (uint32_t)pending;
}

void output_expire(struct output *o) {
  if (o->ended)
    return;
  if (o->owed == 0)
    hold(o);
  else if (!o->waiting)
    read_output(o);
}

static void rested(struct timer *t) {
  (void)t;
  for (size_t i = 0; i < MAX_PROCESSES; i++)
    for (int k = 0; k < 2; k++) {
      struct output *o = &process_at(i)->output[k];
      if (process_at(i)->state == P_FREE || !o->resting)
        continue;
      o->resting = false;
      watch_output(o, true);
    }
}
