/*
 * Capture of a running VMM's memory: what its two parts share. capture.c has its requests and replies, in the loop; freeze.c its thread, which does
 * it from the freeze to the end, since only the thread that traces a clone may hold it. The loop goes on meanwhile: it has a resume recipe to keep.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "inject.h"
#include "layer.h"
#include "pause.h"

struct capture {
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
  bool early; /* the layer has what there was before the pause; what was written since is still to come */
  bool spared; /* for that a clone may be left out */
  int64_t took_us, early_us;
  bool vmm_gone;
  int vmm_status;
};
extern struct capture cap;

/* The thread's body. */
void *capture_thread(void *);
