/* What the parts of an injection share: inject.c borrows a thread where it stands, follow.c where it enters an open. */
#pragma once
#include <signal.h>

#include "inject.h"

#define MAX_STUB_WORDS 64
#define MAX_QUEUED 32
#define EVENT_OF(status) ((unsigned)(status) >> 16)

/* What a session keeps besides what its body sees. */
struct session {
  struct inject in;
  unsigned flags;
  int (*body)(struct inject *, void *);
  void *arg;
  struct awaited_open *at; /* NULL: where the thread stands */
  int result;
  int children; /* signalfd of SIGCHLD */
  bool placed; /* the stub lies in the target */
  bool at_entry; /* the target stands at the entry of its own open, untouched */
  uint64_t original[MAX_STUB_WORDS]; /* what the stub covers */
  siginfo_t queued[MAX_QUEUED];
  int queued_count;
};

/* Seizes and stops the thread; nothing of it is changed. */
int session_seize(struct session *s);
/* The next stop of `pid`; its end is a failure. Also ends, with *status 0, when the descriptor `also` is readable (-1: none). */
int session_stop(struct session *s, pid_t pid, int also, int *status);
bool is_syscall_stop(int status);
bool is_trap_stop(int status);
/* Brings the thread to the awaited open. Then in.resume is how the open is made anew. */
int session_follow(struct session *s);
