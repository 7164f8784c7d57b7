/*
 * The worker's side of a job: what its body calls, from a thread of its own, and that thread. Whatever it has to tell the main thread it
 * puts under the job's lock, and writes the eventfd.
 */
#include "job.h"
#include "paths.h"
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STACK (512 * 1024)

static void tell_main(void) {
  uint64_t one = 1;
  while (write(job_wake.fd, &one, sizeof one) < 0 && errno == EINTR)
    ;
}

static void *worker(void *argument) {
  struct job *j = argument;
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL); /* signals are the main thread's */
  for (;;) {
    pthread_mutex_lock(&j->lock);
    while (!j->body || j->finished)
      pthread_cond_wait(&j->changed, &j->lock);
    job_body *body = j->body;
    pthread_mutex_unlock(&j->lock);

    struct fields f = {j->request, j->request_size};
    body(j, &f);

    pthread_mutex_lock(&j->lock);
    if (j->answer == ANSWER_NONE) {
      j->answer = ANSWER_FAIL;
      j->status = j->cancelled ? ST_CANCELLED : ST_IO;
      snprintf(j->message, sizeof j->message, "%s", j->cancelled ? "the request was cancelled" : "the request was not answered");
    }
    if (j->status < 0) j->status = j->cancelled ? ST_CANCELLED : ST_OK;
    j->finished = true;
    pthread_mutex_unlock(&j->lock);
    tell_main();
  }
  return NULL;
}

void job_reply(struct job *j, const struct out *o) {
  if (o) {
    memcpy(j->reply.bytes, o->bytes, o->size);
    j->reply.size = o->size;
    j->reply.overflow = o->overflow;
  }
  pthread_mutex_lock(&j->lock);
  if (j->answer == ANSWER_NONE) j->answer = ANSWER_REPLY;
  pthread_mutex_unlock(&j->lock);
  tell_main();
}

static void job_result(struct job *j, int status, int err) {
  pthread_mutex_lock(&j->lock);
  j->status = status;
  j->err = err;
  pthread_mutex_unlock(&j->lock);
}

void job_fail(struct job *j, int status, int err, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(j->message, sizeof j->message, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&j->lock);
  bool begun = j->answer == ANSWER_REPLY;
  if (!begun) {
    j->answer = ANSWER_FAIL;
    j->status = status;
    j->err = err;
  }
  pthread_mutex_unlock(&j->lock);
  if (begun) {
    j->last.size = 0;
    out_bytes(&j->last, F_MESSAGE, j->message, strlen(j->message));
    job_result(j, status, err);
  }
  tell_main();
}

void job_fail_path(struct job *j, int err, const char *verb, const char *path) {
  char shown[SHOWN_PATH];
  job_fail(j, status_of_errno(err), err, "cannot %s %s: %s", verb, show_path(path, shown), strerror(err));
}

void job_done(struct job *j, int status, int err, const struct out *o) {
  if (o) {
    memcpy(j->last.bytes, o->bytes, o->size);
    j->last.size = o->size;
    j->last.overflow = o->overflow;
  }
  job_result(j, status, err);
}

bool job_write(struct job *j, const void *bytes, size_t length) {
  const uint8_t *from = bytes;
  pthread_mutex_lock(&j->lock);
  while (length > 0 && !j->cancelled) {
    size_t space = STAGE - (size_t)(j->out.end - j->out.first);
    if (space == 0) {
      pthread_cond_wait(&j->changed, &j->lock);
      continue;
    }
    size_t at = j->out.end % STAGE;
    size_t n = length < space ? length : space;
    if (n > STAGE - at) n = STAGE - at;
    pthread_mutex_unlock(&j->lock);
    memcpy(j->out.bytes + at, from, n);
    from += n;
    length -= n;
    pthread_mutex_lock(&j->lock);
    j->out.end += n;
    pthread_mutex_unlock(&j->lock);
    tell_main();
    pthread_mutex_lock(&j->lock);
  }
  bool whole = !j->cancelled;
  pthread_mutex_unlock(&j->lock);
  return whole;
}

ssize_t job_read(struct job *j, void *bytes, size_t capacity) {
  pthread_mutex_lock(&j->lock);
  while (!j->cancelled && j->in.first == j->in.end && !j->input_ended)
    pthread_cond_wait(&j->changed, &j->lock);
  bool cancelled = j->cancelled;
  size_t at = j->in.first % STAGE;
  size_t n = (size_t)(j->in.end - j->in.first);
  pthread_mutex_unlock(&j->lock);
  if (cancelled) return -1;
  if (n == 0) return 0;
  if (n > capacity) n = capacity;
  if (n > STAGE - at) n = STAGE - at;
  memcpy(bytes, j->in.bytes + at, n);
  pthread_mutex_lock(&j->lock);
  j->in.first += n;
  pthread_mutex_unlock(&j->lock);
  tell_main();
  return (ssize_t)n;
}

bool job_cancelled(struct job *j) {
  pthread_mutex_lock(&j->lock);
  bool cancelled = j->cancelled;
  pthread_mutex_unlock(&j->lock);
  return cancelled;
}

int job_cancel_fd(const struct job *j) {
  return j->cancel_fd;
}

bool job_thread_start(struct job *j, bool apart) {
  if (j->started) return true;
  j->cancel_fd = apart ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  if (apart && j->cancel_fd < 0) return false;
  pthread_mutexattr_t inherit; /* the main thread runs ahead of all others; a worker that holds what it waits for, too */
  pthread_mutexattr_init(&inherit);
  pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&j->lock, &inherit);
  pthread_mutexattr_destroy(&inherit);
  pthread_cond_init(&j->changed, NULL);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK);
  int err = pthread_create(&j->thread, &attributes, worker, j);
  pthread_attr_destroy(&attributes);
  if (err && j->cancel_fd >= 0) close(j->cancel_fd);
  j->started = err == 0;
  if (err) log_line("jobs: cannot start a thread: %s", strerror(err));
  return j->started;
}
