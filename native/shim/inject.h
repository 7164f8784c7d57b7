/* Borrows a VMM's main thread for system calls. The thread comes back as it was, even if this process dies at any moment. */
#pragma once
#include <sys/user.h>

#include "shim.h"

struct inject {
  pid_t pid;
  int64_t deadline; /* us, CLOCK_MONOTONIC: of the whole session */
  uint64_t stub; /* where the stub lies in the target */
  uint64_t stack; /* a place of the target's stack below everything in use */
  struct user_regs_struct resume; /* how the thread goes on afterwards */
  struct fault *fault;
  bool ended; /* the target ended; `status` says how */
  int status;
  unsigned stops; /* ptrace stops seen, for tests */
};

/* One system call for a batch. */
struct call {
  uint64_t number, args[6];
  int64_t result;
};
#define CALL_END UINT64_MAX

enum {
  INJECT_SUSPEND_FILTER = 1, /* fail where the kernel does not allow it */
};

/*
 * Runs `body` with the main thread of `pid` seized and stopped. Returns what it returns, or -1. All of it happens in a thread of its own:
 * when that ends the kernel lets go of the target, whatever state it is in, and the target brings itself back.
 */
int inject_run(pid_t pid, unsigned flags, int timeout_ms, int (*body)(struct inject *, void *), void *arg, struct fault *f);

/* Whether the target has ended, and how. */
struct ended {
  bool ended;
  int status;
};
/*
 * The same in the calling thread, for one that goes on tracing a clone. After a failure that thread has to end soon: its end is what lets go
 * of the target.
 */
int inject_here(pid_t pid, unsigned flags, int timeout_ms, int (*body)(struct inject *, void *), void *arg, struct fault *f, struct ended *ended);

/* An open that the target makes by itself. */
struct awaited_open {
  const char *path; /* as the target gives it to the kernel */
  int (*begin)(void *arg); /* called as soon as the target is watched: makes it do what ends in the open */
  void *arg;
  int answered; /* a descriptor that becomes readable when the target is done with that */
  bool answered_first; /* result: it was done, and has not opened the path */
};
/*
 * The same, but `body` runs where the target enters an open of a path: in the calling thread. The open itself follows when the target goes on.
 * A body that makes no call needs no INJECT_SUSPEND_FILTER.
 */
int inject_at_open(pid_t pid, unsigned flags, int timeout_ms, struct awaited_open *at, int (*body)(struct inject *, void *), void *arg, struct fault *f, struct ended *ended);
/* True, and no session begins until inject_unlock, when none is under way: waiting for any child would take its stops away. */
bool inject_trylock(void);
void inject_unlock(void);
/* Closes all descriptors of a clone, which then stays stopped for good. Only in the thread that made it. */
int inject_close_all(pid_t clone, const struct inject *made_with, unsigned flags, int timeout_ms, struct fault *f);

/* One system call in the target; its result (negative errno on failure) in *result. -1 when the target is gone or the time is up. */
int inject_call(struct inject *in, int64_t *result, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t g);
/*
 * Runs calls that lie at `address` in the target, up to CALL_END, without a stop between them. The last must make `done` readable here
 * (by closing its other end): that is how their end is known.
 */
int inject_batch(struct inject *in, uint64_t address, int done);
/* clone(CLONE_PARENT|SIGCHLD) without a stack: the clone dies if it ever executes. It is stopped and traced. */
int inject_clone(struct inject *in, pid_t *clone);

int target_read(struct inject *in, uint64_t from, void *into, size_t length);
int target_write(struct inject *in, uint64_t to, const void *from, size_t length);

#ifdef SHIM_TEST
/* Called at every ptrace stop. */
extern void (*inject_at_stop)(unsigned stop);
#endif
