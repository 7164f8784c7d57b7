/* ATTACH, PS, SIGNAL, RESIZE and RELEASE. */
#include "process.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>

/* The process that a request names, or NULL after slot_fail. */
static struct process *named(struct slot *s, const struct fields *f) {
  uint32_t handle = fields_u32(f, F_HANDLE, 0);
  struct process *p = process_find(handle);
  if (!p)
    slot_fail(s, ST_NO_SUCH_PROCESS, 0, "there is no process with handle %u: it was released, or ended long ago", handle);
  return p;
}

void verb_attach(struct slot *s, const struct fields *f) {
  static struct out o;
  struct process *p = named(s, f);
  if (!p)
    return;
  if (p->state == P_STARTING) {
    slot_fail(s, ST_BUSY, 0, "process %u is being started: attach when that has been answered", p->handle);
    return;
  }
  struct reader *r = reader_new(s, p);
  if (!r) {
    slot_fail(s, ST_BUSY, 0, "too many requests follow processes");
    return;
  }
  bool input = fields_u32(f, F_STDIN, 0) == 1;
  o.size = 0;
  o.overflow = false;
  out_u32(&o, F_HANDLE, p->handle);
  out_u32(&o, F_PID, (uint32_t)p->pid);
  out_u32(&o, F_PTY, p->pty);
  reader_open(r, input, fields_u32(f, F_FROM, 0) == 1);
  if (fields_u32(f, F_LOSSLESS, 0) == 1 && p->state == P_RUNNING) {
    p->lossless = r;
    output_resume(p);
  }
  if (input)
    input_take(p, r);
  slot_reply(s, &o);
  if (r->slot == s) /* not reset meanwhile */
    reader_catch_up(r);
}

/* ---- PS: the table may be larger than a slot's ring, so it is written as the host takes it -------------------------- */

struct listing {
  struct slot *slot;
  size_t next; /* place in the table */
};
static struct listing listings[FK_MAX_REQUESTS];

static void put_u32(uint8_t *to, uint32_t value) {
  for (int i = 0; i < 4; i++)
    to[i] = (uint8_t)(value >> (8 * i));
}

static void describe(const struct process *p, struct out *o) {
  struct out *const to = o;
  uint8_t outcome[16];
  to->size = 0;
  to->overflow = false;
  out_u32(to, F_HANDLE, p->handle);
  out_u32(to, F_PID, (uint32_t)p->pid);
  out_u32(to, F_STATE, p->state == P_ENDED);
  out_u32(to, F_ROLE, p->interpreter);
  out_u32(to, F_PTY, p->pty);
  out_bytes(to, F_LABEL, p->label, strlen(p->label));
  for (size_t at = 0; at < p->command_size; at += strlen(p->command + at) + 1)
    out_bytes(to, F_ARG, p->command + at, strlen(p->command + at));
  out_u64(to, F_AGE, now_ms() - p->started_ns / 1000000);
  if (p->state == P_ENDED) {
    for (int i = 0; i < 4; i++)
      put_u32(outcome + 4 * i, p->outcome[i]);
    out_bytes(to, F_OUTCOME, outcome, sizeof outcome);
  }
}

static void list_on(struct listing *l) {
  static struct out o;
  uint8_t length[4];
  for (; l->next < MAX_PROCESSES; l->next++) {
    const struct process *p = process_at(l->next);
    if (p->state == P_FREE || p->state == P_FAILED || p->hidden)
      continue;
    describe(p, &o);
    if (slot_space(l->slot, 1) < o.size + sizeof length)
      return;
    put_u32(length, (uint32_t)o.size);
    slot_write(l->slot, 1, length, sizeof length);
    slot_write(l->slot, 1, o.bytes, o.size);
  }
  slot_end(l->slot, 1);
  slot_done(l->slot, ST_OK, 0, NULL);
}

static void list_writable(struct slot *s, int channel) {
  struct listing *l = slot_context(s);
  (void)channel;
  if (l->next < MAX_PROCESSES)
    list_on(l);
}

static void list_reset(struct slot *s) {
  struct listing *l = slot_context(s);
  l->next = MAX_PROCESSES;
  slot_done(s, ST_CANCELLED, 0, NULL);
}

static void list_release(struct slot *s) {
  struct listing *l = slot_context(s);
  l->slot = NULL;
}

static const struct slot_ops list_ops = { .writable = list_writable, .reset = list_reset, .release = list_release };

void verb_ps(struct slot *s, const struct fields *f) {
  (void)f;
  for (size_t i = 0; i < FK_MAX_REQUESTS; i++) {
    struct listing *l = &listings[i];
    if (l->slot)
      continue;
    *l = (struct listing){ .slot = s };
    slot_set(s, &list_ops, l);
    slot_open(s, false, 1);
    slot_reply(s, NULL);
    if (l->next < MAX_PROCESSES)
      list_on(l);
    return;
  }
  slot_fail(s, ST_BUSY, 0, "too many listings at once");
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

void verb_signal(struct slot *s, const struct fields *f) {
  uint32_t number = fields_u32(f, F_SIGNAL, 0);
  bool all = fields_u32(f, F_ALL, 0) == 1, cancel = fields_u32(f, F_CANCEL, 0) == 1;
  struct process *p = named(s, f);
  if (!p)
    return;
  if (!cancel && (number < 1 || number > 64)) {
    slot_fail(s, ST_INVALID, 0, "%u is not a signal: they go from 1 to 64", number);
    return;
  }
  if (p->reaped && !all && !cancel) {
    slot_fail(s, ST_NO_SUCH_PROCESS, 0, "process %u has ended", p->handle);
    return;
  }
  if (cancel && !p->reaped) {
    process_stop(p, OUTCOME_CANCELLED);
    slot_reply(s, NULL);
    return;
  }
  if (cancel) {
    all = true; /* what it left behind */
    number = SIGKILL;
  }
  int reached = 0;
  if (all && options.real)
    reached = group_signal(p->handle, p->interpreter, (int)number);
  if (all && options.real && number == SIGKILL)
    group_kill(p->handle, p->interpreter); /* also what forks faster than one can count */
  if (all && !options.real)
    reached = kill(-p->pid, (int)number) == 0;
  if (!p->reaped && reached == 0)
    reached = kill(p->pid, (int)number) == 0;
  if (reached == 0)
    slot_fail(s, ST_NO_SUCH_PROCESS, 0, "no process of %u is left", p->handle);
  else
    slot_reply(s, NULL);
}

void verb_resize(struct slot *s, const struct fields *f) {
  uint32_t rows = fields_u32(f, F_ROWS, 0), cols = fields_u32(f, F_COLS, 0);
  struct process *p = named(s, f);
  if (!p)
    return;
  if (!p->pty) {
    slot_fail(s, ST_INVALID, 0, "process %u has no terminal", p->handle);
    return;
  }
  if (rows < 1 || rows > 65535 || cols < 1 || cols > 65535) {
    slot_fail(s, ST_INVALID, 0, "a terminal has 1 to 65535 rows and columns, not %u x %u", rows, cols);
    return;
  }
  struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols };
  if (p->reaped || p->output[0].watched.fd < 0)
    slot_fail(s, ST_NO_SUCH_PROCESS, 0, "process %u has ended", p->handle);
  else if (ioctl(p->output[0].watched.fd, TIOCSWINSZ, &size) < 0)
    slot_fail(s, status_of_errno(errno), errno, "cannot resize the terminal: %s", strerror(errno));
  else
    slot_reply(s, NULL);
}

void verb_release(struct slot *s, const struct fields *f) {
  struct process *p = named(s, f);
  if (!p)
    return;
  p->hidden = true;
  process_forget(p);
  slot_reply(s, NULL);
}
