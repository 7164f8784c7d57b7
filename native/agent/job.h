/*
 * What the two sides of a job share: jobs.c, the main thread's, and job_worker.c, the thread's that runs its body. Only the main thread
 * touches slots; a field says under which lock, or whose, it is.
 */
#pragma once
#include "jobs.h"
#include "agent.h"
#include <pthread.h>

#define REQUEST_MAX 16384
#define STAGE 65536

/* One thread writes, the other reads; `first` and `end` change under the lock. */
struct stage {
  uint64_t first, end;
  uint8_t bytes[STAGE];
};

enum answer { ANSWER_NONE, ANSWER_REPLY, ANSWER_FAIL };

struct job {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int cancel_fd;
  bool started;

  /* main thread only */
  struct slot *slot; /* NULL once the slot is answered or gone */
  bool busy, input, output, answered, was_reset, pumping;
  struct timer grace;

  /* under the lock */
  job_body *body;
  bool finished, cancelled, input_ended;
  enum answer answer;
  int status, err;
  struct stage in, out;

  /* written by one side before a flag of above tells the other */
  size_t request_size;
  uint8_t request[REQUEST_MAX];
  struct out reply, last;
  char message[2048];
};

/* Starts the job's thread, unless it runs. False, and told in the log, where the guest has no room for one. */
bool job_thread_start(struct job *j, bool apart);
/* The eventfd by which workers wake the main thread. Set before the first thread starts. */
extern struct watched job_wake;
