/*
 * Worker threads, for verbs that may block on a file system.
 *
 *   slot (main thread)  <-- pump() -->  struct job, one per thread  <-- job_read, job_write -->  body (worker)
 *
 * Only the main thread touches slots and the queue; worker and main share a job's fields under its lock. A worker that has
 * something to tell writes the eventfd, and the main thread pumps all that are busy.
 */
#include "job.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WORKERS 16
#define STREAMS 12 /* of the workers: a host that does not read its downloads leaves the others to short verbs */
#define APART 64
#define WAITING FK_MAX_REQUESTS /* each request that there can be: memory of those that never waited is never touched */
#define RESET_GRACE_MS 2000 /* a body that hangs in the kernel is left behind after that; its reset is answered */

struct waiting {
  struct slot *slot;
  struct waiting *next;
  job_body *body;
  bool input, output;
  size_t request_size;
  uint8_t request[REQUEST_MAX];
};

static struct job jobs[WORKERS + APART];
static struct waiting queue_entries[WAITING];
static struct waiting *queue_first, *queue_free;
struct watched job_wake = {.fd = -1};

static void pump(struct job *j);
static void on_input(struct slot *s);
static void on_writable(struct slot *s, int channel);
static void on_reset(struct slot *s);
static void on_release(struct slot *s);
static void waiting_reset(struct slot *s);
static void waiting_release(struct slot *s);

static const struct slot_ops job_ops = {on_input, on_writable, on_reset, on_release};
static const struct slot_ops waiting_ops = {NULL, NULL, waiting_reset, waiting_release};
static const struct slot_ops no_ops = {NULL, NULL, NULL, NULL};

static void detach(struct job *j) {
  struct slot *s = j->slot;
  j->slot = NULL;
  timer_clear(&j->grace);
  slot_set(s, &no_ops, NULL);
}

static void cancel(struct job *j) {
  pthread_mutex_lock(&j->lock);
  j->cancelled = true;
  pthread_cond_broadcast(&j->changed);
  pthread_mutex_unlock(&j->lock);
  if (j->cancel_fd >= 0) {
    uint64_t one = 1;
    if (write(j->cancel_fd, &one, sizeof one) < 0) log_line("jobs: eventfd: %s", strerror(errno));
  }
}

static void answer(struct job *j, enum answer how) {
  struct slot *s = j->slot;
  bool channels = j->input || j->output;
  j->answered = true;
  if (how == ANSWER_FAIL) {
    detach(j);
    slot_fail(s, j->status, j->err, "%s", j->message);
  } else if (!channels) {
    detach(j);
    slot_reply(s, &j->reply);
  } else {
    slot_open(s, j->input, j->output ? 1 : 0);
    slot_reply(s, &j->reply);
  }
}

/* Worker to host. */
static void move_output(struct job *j) {
  for (;;) {
    pthread_mutex_lock(&j->lock);
    size_t at = j->out.first % STAGE;
    size_t n = (size_t)(j->out.end - j->out.first);
    pthread_mutex_unlock(&j->lock);
    if (n > STAGE - at) n = STAGE - at;
    size_t taken = n;
    if (j->slot && !j->was_reset) taken = n > 0 ? slot_write(j->slot, 1, j->out.bytes + at, n) : 0;
    if (taken == 0) return;
    pthread_mutex_lock(&j->lock);
    j->out.first += taken;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
  }
}

/* Host to worker. */
static void move_input(struct job *j) {
  const uint8_t *bytes;
  size_t n;
  while (j->slot && (n = slot_input(j->slot, &bytes)) > 0) {
    pthread_mutex_lock(&j->lock);
    size_t at = j->in.end % STAGE;
    size_t space = STAGE - (size_t)(j->in.end - j->in.first);
    pthread_mutex_unlock(&j->lock);
    if (n > space) n = space;
    if (n > STAGE - at) n = STAGE - at;
    if (n == 0) return;
    memcpy(j->in.bytes + at, bytes, n);
    slot_consume(j->slot, n);
    pthread_mutex_lock(&j->lock);
    j->in.end += n;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
  }
  if (j->slot && slot_input_ended(j->slot)) {
    pthread_mutex_lock(&j->lock);
    j->input_ended = true;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
  }
}

static void begin(struct job *j, struct slot *s, job_body *body, bool input, bool output, const uint8_t *request, size_t size) {
  j->busy = true;
  j->slot = s;
  j->input = input;
  j->output = output;
  j->answered = j->was_reset = false;
  j->request_size = size;
  memcpy(j->request, request, size);
  j->reply.size = j->last.size = 0;
  j->reply.overflow = j->last.overflow = false;
  if (j->cancel_fd >= 0) {
    uint64_t count;
    if (read(j->cancel_fd, &count, sizeof count) < 0 && errno != EAGAIN) log_line("jobs: eventfd: %s", strerror(errno));
  }
  slot_set(s, &job_ops, j);
  pthread_mutex_lock(&j->lock);
  j->cancelled = j->input_ended = j->finished = false;
  j->answer = ANSWER_NONE;
  j->status = -1; /* nothing said yet */
  j->err = 0;
  j->in.first = j->in.end = j->out.first = j->out.end = 0;
  j->body = body;
  pthread_cond_broadcast(&j->changed);
  pthread_mutex_unlock(&j->lock);
}

/* Gives the worker, which is free, the first of the queue that may run. */
static void assign(void) {
  int streams = 0;
  for (int i = 0; i < WORKERS; i++)
    if (jobs[i].busy && (jobs[i].input || jobs[i].output)) streams++;
  for (int i = 0; i < WORKERS && queue_first; i++) {
    struct job *j = &jobs[i];
    if (j->busy || !j->started) continue;
    struct waiting **at = &queue_first;
    while (*at && ((*at)->input || (*at)->output) && streams >= STREAMS)
      at = &(*at)->next;
    struct waiting *w = *at;
    if (!w) return;
    *at = w->next;
    if (w->input || w->output) streams++;
    begin(j, w->slot, w->body, w->input, w->output, w->request, w->request_size);
    w->next = queue_free;
    queue_free = w;
  }
}

static void pump(struct job *j) {
  if (!j->busy || j->pumping) return;
  j->pumping = true; /* what is called here may call back */
  pthread_mutex_lock(&j->lock);
  enum answer how = j->answer;
  bool finished = j->finished;
  pthread_mutex_unlock(&j->lock);
  if (j->slot && how != ANSWER_NONE && !j->answered) answer(j, how);
  if (j->answered || !j->slot) move_output(j);
  if (j->slot && j->answered && j->input) move_input(j);
  if (finished && j->slot && j->answered && j->out.first == j->out.end) {
    struct slot *s = j->slot;
    detach(j);
    if (j->output) slot_end(s, 1);
    slot_done(s, j->status, j->err, &j->last);
  }
  j->pumping = false;
  if (finished && !j->slot) {
    j->busy = false;
    if (j - jobs < WORKERS) assign();
  }
}

static void on_wake(struct watched *w, uint32_t events) {
  (void)events;
  uint64_t count;
  if (read(w->fd, &count, sizeof count) < 0 && errno != EAGAIN) log_line("jobs: eventfd: %s", strerror(errno));
  for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
    pump(&jobs[i]);
}

static void on_input(struct slot *s) {
  pump(slot_context(s));
}

static void on_writable(struct slot *s, int channel) {
  (void)channel;
  pump(slot_context(s));
}

static void abandon(struct timer *t) {
  struct job *j = (struct job *)((char *)t - offsetof(struct job, grace));
  struct slot *s = j->slot;
  if (!s) return;
  detach(j);
  if (!j->answered) {
    slot_fail(s, ST_CANCELLED, 0, "the request was cancelled; what it waits for in the guest does not end");
    return;
  }
  if (j->output) slot_end(s, 1);
  slot_done(s, ST_CANCELLED, 0, NULL);
}

static void on_reset(struct slot *s) {
  struct job *j = slot_context(s);
  j->was_reset = true;
  j->grace.fire = abandon;
  timer_set(&j->grace, RESET_GRACE_MS);
  cancel(j);
  pump(j);
}

static void on_release(struct slot *s) {
  struct job *j = slot_context(s);
  j->slot = NULL;
  timer_clear(&j->grace);
  cancel(j);
  pump(j);
}

static void unqueue(struct waiting *w) {
  struct waiting **at = &queue_first;
  while (*at && *at != w)
    at = &(*at)->next;
  if (*at) *at = w->next;
  w->next = queue_free;
  queue_free = w;
}

static void waiting_reset(struct slot *s) {
  unqueue(slot_context(s));
  slot_set(s, &no_ops, NULL);
  slot_fail(s, ST_CANCELLED, 0, "the request was cancelled before it began");
}

static void waiting_release(struct slot *s) {
  unqueue(slot_context(s));
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* False, and the slot failed, when a job of this request cannot be. */
static bool prepare(struct slot *s, const struct fields *f) {
  if (f->size > REQUEST_MAX) {
    slot_fail(s, ST_TOO_LONG, 0, "the request's fields are %zu bytes: this verb takes at most %d", f->size, REQUEST_MAX);
    return false;
  }
  if (job_wake.fd >= 0) return true;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  job_wake.fd = fd;
  job_wake.ready = on_wake;
  if (fd >= 0 && loop_add(&job_wake, EPOLLIN) == 0) {
    for (size_t i = 0; i < WAITING; i++) {
      queue_entries[i].next = queue_free;
      queue_free = &queue_entries[i];
    }
    return true;
  }
  int err = errno;
  if (fd >= 0) close(fd);
  job_wake.fd = -1;
  slot_fail(s, status_of_errno(err), err, "cannot make an eventfd: %s", strerror(err));
  return false;
}

void job_start_with(struct slot *s, job_body *body, const struct fields *f, bool input, bool output) {
  if (!prepare(s, f)) return;
  bool any = false;
  for (int i = 0; i < WORKERS; i++)
    any |= job_thread_start(&jobs[i], false);
  struct waiting *w = queue_free;
  if (!any) {
    slot_fail(s, ST_NO_MEMORY, 0, "the guest has no room for a thread of the agent");
    return;
  }
  if (!w) {
    slot_fail(s, ST_BUSY, 0, "%d requests of files wait already: try again when some have ended", WAITING);
    return;
  }
  queue_free = w->next;
  w->slot = s;
  w->next = NULL;
  w->body = body;
  w->input = input;
  w->output = output;
  w->request_size = f->size;
  memcpy(w->request, f->data, f->size);
  struct waiting **at = &queue_first;
  while (*at)
    at = &(*at)->next;
  *at = w;
  slot_set(s, &waiting_ops, w);
  assign();
}

void job_start(struct slot *s, job_body *body, bool input, bool output) {
  static const struct fields none = {(const uint8_t *)"", 0};
  job_start_with(s, body, &none, input, output);
}

void job_start_apart(struct slot *s, job_body *body, const struct fields *f, bool output) {
  if (!prepare(s, f)) return;
  for (int i = WORKERS; i < WORKERS + APART; i++) {
    struct job *j = &jobs[i];
    if (j->busy) continue;
    if (job_thread_start(j, true)) begin(j, s, body, false, output, f->data, f->size);
    else slot_fail(s, ST_NO_MEMORY, 0, "the guest has no room for a thread of the agent");
    return;
  }
  slot_fail(s, ST_BUSY, 0, "%d watches run already: end one first", APART);
}
