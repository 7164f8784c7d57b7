/* The table of processes: from a forked child to the end of its call. */
#include "process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct process table[MAX_PROCESSES];
static uint32_t last_handle;

struct process *process_at(size_t index) {
  return &table[index];
}

static bool runs(const struct process *p) {
  return p->state != P_FREE && !p->reaped;
}

struct process *process_find(uint32_t handle) {
  for (size_t i = 0; handle && i < MAX_PROCESSES; i++)
    if (table[i].handle == handle && table[i].state != P_FREE && table[i].state != P_FAILED && !table[i].hidden)
      return &table[i];
  return NULL;
}

bool process_runs(uint32_t handle) {
  for (size_t i = 0; i < MAX_PROCESSES; i++)
    if (table[i].handle == handle && runs(&table[i]))
      return true;
  return false;
}

int process_count(void) {
  int count = 0;
  for (size_t i = 0; i < MAX_PROCESSES; i++)
    count += runs(&table[i]);
  return count;
}

static bool holds(const struct process *p) {
  return p->output[0].watched.fd >= 0 || p->output[1].watched.fd >= 0;
}

/* The ended entry that can best be spared: the oldest, but rather none whose descendants still write into our pipes. */
static struct process *spare(void) {
  struct process *best = NULL;
  for (size_t i = 0; i < MAX_PROCESSES; i++) {
    struct process *p = &table[i];
    if (p->state != P_ENDED || p->readers)
      continue;
    if (!best || holds(p) < holds(best) || (holds(p) == holds(best) && p->ended_ms < best->ended_ms))
      best = p;
  }
  return best;
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void deadline_passed(struct timer *t);
static void grace_passed(struct timer *t);
static void status_ready(struct watched *w, uint32_t events);

struct process *process_new(bool pty) {
  struct process *p = NULL;
  for (size_t i = 0; i < MAX_PROCESSES && !p; i++)
    if (table[i].state == P_FREE)
      p = &table[i];
  if (!p && (p = spare()))
    process_free(p);
  errno = EAGAIN;
  if (!p)
    return NULL;
  void *memory = mmap(NULL, FK_PROCESS_RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    errno = ENOMEM;
    return NULL;
  }
  madvise(memory, FK_PROCESS_RING, MADV_DONTFORK); /* children need not copy the page tables of others' output */
  memset(p, 0, sizeof *p);
  p->handle = ++last_handle;
  p->memory = memory;
  p->pty = pty;
  p->outputs = pty ? 1 : 2;
  p->state = P_STARTING;
  p->status.fd = p->input.watched.fd = -1;
  p->input.process = p;
  p->deadline.fire = deadline_passed;
  p->grace.fire = grace_passed;
  p->started_ns = now_ns();
  for (int i = 0; i < 2; i++) {
    struct output *o = &p->output[i];
    o->process = p;
    o->watched.fd = -1;
    o->ended = i >= p->outputs;
    o->ring.capacity = i < p->outputs ? FK_PROCESS_RING / (size_t)p->outputs : 0;
    o->ring.bytes = p->memory + (size_t)i * o->ring.capacity;
  }
  return p;
}

static void close_status(struct process *p) {
  if (p->status.fd < 0)
    return;
  loop_remove(&p->status);
  close(p->status.fd);
  p->status.fd = -1;
}

void process_free(struct process *p) {
  timer_clear(&p->deadline);
  timer_clear(&p->grace);
  close_status(p);
  input_close(&p->input);
  output_close(&p->output[0]);
  output_close(&p->output[1]);
  munmap(p->memory, FK_PROCESS_RING);
  p->memory = NULL;
  p->state = P_FREE;
}

void process_forget(struct process *p) {
  if (p->state == P_ENDED && p->hidden && !p->readers && !holds(p))
    process_free(p);
}

void process_forked(struct process *p, pid_t pid, int status_fd, uint32_t timeout_ms) {
  p->pid = pid;
  p->status.fd = status_fd;
  p->status.ready = status_ready;
  loop_add(&p->status, EPOLLIN);
  if (timeout_ms)
    timer_set(&p->deadline, timeout_ms);
}

/* The child is past exec: it is what was asked for. */
static void execed(struct process *p) {
  struct reader *r = p->starter;
  p->state = P_RUNNING;
  p->starter = NULL;
  for (int i = 0; i < p->outputs; i++)
    output_start(&p->output[i], p->output[i].watched.fd);
  if (!r)
    return; /* the session that asked is over; the process goes on */
  static struct out o;
  o.size = 0;
  o.overflow = false;
  out_u32(&o, F_HANDLE, p->handle);
  out_u32(&o, F_PID, (uint32_t)p->pid);
  p->lossless = r;
  reader_open(r, p->input.watched.fd >= 0, false);
  if (p->input.watched.fd >= 0)
    input_take(p, r);
  slot_reply(r->slot, &o);
  if (r->slot && r->reset)
    reader_done(r, ST_CANCELLED);
}

static void failed(struct process *p, const struct complaint *c) {
  struct reader *r = p->starter;
  p->state = P_FAILED;
  timer_clear(&p->deadline);
  if (r) {
    struct slot *s = r->slot;
    reader_drop(r);
    spawn_failed(s, c);
  }
}

/* The status pipe: closed by exec, or the child's complaint. */
static void status_ready(struct watched *w, uint32_t events) {
  struct process *p = PROCESS_OF(w, status);
  struct complaint c;
  (void)events;
  if (p->status.fd < 0)
    return;
  ssize_t n = read(p->status.fd, &c, sizeof c);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  close_status(p);
  if (n == (ssize_t)sizeof c) {
    c.subject[sizeof c.subject - 1] = c.interpreter[sizeof c.interpreter - 1] = 0;
    failed(p, &c);
  } else {
    execed(p);
  }
}

static bool has_ended(pid_t pid) {
  siginfo_t info;
  info.si_pid = 0;
  return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

void process_stop(struct process *p, uint32_t reason) {
  if (!p->reaped && !p->stopping && !has_ended(p->pid)) { /* what ended by itself says so */
    p->stopping = true;
    p->reason = reason;
  }
  group_kill(p->handle, p->interpreter);
  if (p->reaped)
    return;
  if (!options.real)
    kill(-p->pid, SIGKILL);
  kill(p->pid, SIGKILL); /* it may not have reached its group yet */
}

static void deadline_passed(struct timer *t) {
  struct process *p = PROCESS_OF(t, deadline);
  if (p->state == P_STARTING || p->state == P_RUNNING)
    process_stop(p, OUTCOME_TIMEOUT);
}

static void judge(struct process *p, int status) {
  uint32_t *outcome = p->outcome;
  if (p->stopping) {
    outcome[0] = p->reason;
  } else if (WIFEXITED(status)) {
    outcome[0] = OUTCOME_EXITED;
    outcome[1] = (uint32_t)WEXITSTATUS(status);
  } else {
    outcome[0] = WTERMSIG(status) == SIGKILL && group_oom_killed(p->handle, p->interpreter) ? OUTCOME_OOM : OUTCOME_SIGNALED;
    outcome[1] = outcome[0] == OUTCOME_OOM ? 0 : (uint32_t)WTERMSIG(status);
    outcome[2] = WCOREDUMP(status) ? 1 : 0;
  }
}

static uint64_t microseconds(struct timeval t) {
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec;
}

void process_reaped(pid_t pid, int status, const void *rusage) {
  struct process *p = NULL;
  for (size_t i = 0; i < MAX_PROCESSES && !p; i++)
    if (table[i].state != P_FREE && table[i].pid == pid && !table[i].reaped)
      p = &table[i];
  if (!p) {
    group_orphan_reaped();
    return;
  }
  if (p->state == P_STARTING)
    status_ready(&p->status, 0); /* the child is gone: the pipe has its complaint, or its end */
  p->reaped = true;
  if (p->state == P_STARTING) { /* a descendant cannot hold the pipe before exec; but never wait for one that does */
    close_status(p);
    execed(p);
  }
  if (p->state == P_FAILED) {
    group_close(p->handle, p->interpreter);
    process_free(p);
    return;
  }
  const struct rusage *u = rusage;
  p->usage[0] = now_ns() - p->started_ns;
  if (u) {
    p->usage[1] = microseconds(u->ru_utime);
    p->usage[2] = microseconds(u->ru_stime);
    p->usage[3] = (uint64_t)u->ru_maxrss;
  }
  judge(p, status);
  timer_clear(&p->deadline);
  input_close(&p->input);
  for (int i = 0; i < p->outputs; i++)
    output_owe(&p->output[i]);
  /* A group that was killed as a whole only needs time to die. */
  bool dying = p->stopping || p->outcome[0] == OUTCOME_OOM;
  timer_set(&p->grace, dying ? DYING_MS : GRACE_MS);
  process_settle(p);
}

static void grace_passed(struct timer *t) {
  struct process *p = PROCESS_OF(t, grace);
  p->grace_over = true;
  for (int i = 0; i < p->outputs; i++)
    output_expire(&p->output[i]);
  process_settle(p);
}

void process_settle(struct process *p) {
  if (!p->reaped || p->state != P_RUNNING || !p->output[0].ended || !p->output[1].ended)
    return;
  p->state = P_ENDED;
  p->ended_ms = now_ms();
  p->lossless = NULL;
  p->held_open = holds(p);
  p->outcome[3] = p->held_open;
  timer_clear(&p->grace);
  group_close(p->handle, p->interpreter);
  for (struct reader *r = p->readers, *next; r; r = next) {
    next = r->next;
    reader_done(r, ST_OK);
  }
  process_forget(p);
}
