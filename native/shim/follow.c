/*
 * Follows a VMM's main thread to the entry of an open, where its state is what it says to whoever reads its memory: what the thread does before
 * is done, what it does afterwards is not begun. See session.h.
 *
 * The thread is watched, and not touched: should the tracer die meanwhile, it goes on as if nothing had been. At the entry it may be borrowed.
 * It then comes back to the `syscall` instruction itself, and makes its open anew.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "session.h"

#define SYSCALL_BYTES 2 /* of the instruction */
/* How long a thread may take to stop when it is late already. */
#define HALT_US 1000000

static int ask(struct session *s, int request, uintptr_t data) {
  return ptrace(request, s->in.pid, 0, data) ? fail(s->in.fault, errno, "continue process %d", s->in.pid) : 0;
}

/* True when the path at this address of the target is the awaited one. */
static bool is_path(const struct session *s, uint64_t address) {
  char text[256];
  size_t length = strlen(s->at->path) + 1;
  if (length > sizeof text) return false;
  struct iovec local = {text, length}, remote = {(void *)(uintptr_t)address, length};
  return process_vm_readv(s->in.pid, &local, 1, &remote, 1, 0) == (ssize_t)length && !memcmp(text, s->at->path, length);
}

/* 1: at the entry of the open; 0: elsewhere. */
static int at_the_open(struct session *s) {
  struct __ptrace_syscall_info info;
  if (ptrace(PTRACE_GET_SYSCALL_INFO, s->in.pid, sizeof info, &info) < 0) return fail(s->in.fault, errno, "syscall info");
  if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return 0;
  if (info.entry.nr == SYS_openat) return is_path(s, info.entry.args[1]);
  return info.entry.nr == SYS_open && is_path(s, info.entry.args[0]);
}

/* Stops a thread that runs, so that it can be let go. */
static int halt(struct session *s) {
  int status;
  if (ask(s, PTRACE_INTERRUPT, 0)) return -1;
  do {
    if (session_stop(s, s->in.pid, -1, &status)) return -1;
    bool signal = EVENT_OF(status) == 0 && !is_syscall_stop(status);
    if (!is_trap_stop(status) && ask(s, PTRACE_CONT, signal ? (uintptr_t)WSTOPSIG(status) : 0)) return -1;
  } while (!is_trap_stop(status));
  return 0;
}

/* The target has answered instead. */
static int answered(struct session *s) {
  s->at->answered_first = true;
  if (halt(s)) return -1;
  return fail(s->in.fault, ENOENT, "process %d did not open \"%.100s\"", s->in.pid, s->at->path);
}

/* It is late. The thread goes on untraced: it would stand still at its next stop, and with it whatever is asked of the VMM. */
static int give_up(struct session *s) {
  struct fault first = *s->in.fault;
  s->in.deadline = now_us() + HALT_US;
  halt(s);
  *s->in.fault = first;
  return -1;
}

int session_follow(struct session *s) {
  s->at_entry = true; /* whatever happens until then: nothing of the thread was changed */
  if (s->at->begin(s->at->arg)) return -1;
  uintptr_t signal = 0;
  for (int there = 0; there == 0;) {
    int status;
    if (ask(s, PTRACE_SYSCALL, signal)) return -1;
    if (session_stop(s, s->in.pid, s->at->answered, &status)) return s->in.ended ? -1 : give_up(s);
    if (status == 0) return answered(s);
    signal = 0;
    if (is_syscall_stop(status)) there = at_the_open(s);
    else if (EVENT_OF(status) == 0) signal = (uintptr_t)WSTOPSIG(status);
    else if (is_trap_stop(status) && WSTOPSIG(status) != SIGTRAP) return fail(s->in.fault, EBUSY, "process %d was stopped by signal %d", s->in.pid, WSTOPSIG(status));
    if (there < 0) return -1;
  }
  struct user_regs_struct *r = &s->in.resume;
  if (ptrace(PTRACE_GETREGS, s->in.pid, 0, r)) return fail(s->in.fault, errno, "get registers");
  r->rip -= SYSCALL_BYTES;
  r->rax = r->orig_rax;
  r->orig_rax = UINT64_MAX;
  return 0;
}
