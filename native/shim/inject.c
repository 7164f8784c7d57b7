/* System calls in a VMM's main thread: seize, run a stub that restores itself, let go. See inject.h and stub.S.h. */
#define _GNU_SOURCE
#include "session.h"

#include <elf.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stub.S.h"

#ifdef SHIM_TEST
void (*inject_at_stop)(unsigned stop);
#endif

/* The flags lie this far below the stack pointer: past the red zone of 128 bytes. */
#define STACK_GAP 512
/* The results of an interrupted system call that the kernel would have started again (linux/errno.h, not for user space). */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

static struct session *session_of(struct inject *in) { return (struct session *)in; }

/* ---- waiting ---- */

static int late(struct session *s, pid_t pid) {
  return fail(s->in.fault, ETIMEDOUT, "process %d did not reach the next stop in time (is it frozen?)", pid);
}

/* Waits in the kernel; the session's timer interrupts it at the deadline, and again and again after it. */
static int wait_quietly(struct session *s, pid_t pid, int *status) {
  for (;;) {
    pid_t got = waitpid(pid, status, __WALL);
    if (got == pid) return 0;
    if (errno != EINTR) return fail(s->in.fault, errno, "wait for process %d", pid);
    if (now_us() >= s->in.deadline) return late(s, pid);
  }
}

/* The same, or until `also` becomes readable: *status is 0 then. Only while no other thread waits for children's signals. */
static int wait_either(struct session *s, pid_t pid, int also, int *status) {
  for (;;) {
    pid_t got = waitpid(pid, status, WNOHANG | __WALL);
    if (got < 0) return fail(s->in.fault, errno, "wait for process %d", pid);
    if (got == pid) return 0;
    int64_t left = s->in.deadline - now_us();
    if (left <= 0) return late(s, pid);
    struct pollfd polled[2] = {{s->children, POLLIN, 0}, {also, POLLIN, 0}};
    int n = poll(polled, 2, (int)(left / 1000) + 1);
    if (n < 0 && errno != EINTR) return fail(s->in.fault, errno, "poll");
    struct signalfd_siginfo drop[8];
    if (n > 0 && polled[0].revents && read(s->children, drop, sizeof drop) < 0 && errno != EAGAIN)
      return fail(s->in.fault, errno, "read signals");
    if (n > 0 && polled[1].revents) {
      *status = 0;
      return 0;
    }
  }
}

int session_stop(struct session *s, pid_t pid, int also, int *status) {
  if (also < 0 ? wait_quietly(s, pid, status) : wait_either(s, pid, also, status)) return -1;
  if (*status == 0 && also >= 0) return 0;
  if (WIFEXITED(*status) || WIFSIGNALED(*status)) {
    if (pid == s->in.pid) {
      s->in.ended = true;
      s->in.status = *status;
    }
    return fail(s->in.fault, ESRCH, "process %d has ended", pid);
  }
  s->in.stops++;
#ifdef SHIM_TEST
  if (inject_at_stop) inject_at_stop(s->in.stops);
#endif
  return 0;
}

static int resume_with(struct session *s, int request) {
  if (ptrace(request, s->in.pid, 0, 0) == 0) return 0;
  return fail(s->in.fault, errno, "continue process %d", s->in.pid);
}

/* A signal that arrived: kept back, so that no handler runs on top of the stub; sent again at the end. */
static void queue_signal(struct session *s, int signal) {
  siginfo_t info;
  if (ptrace(PTRACE_GETSIGINFO, s->in.pid, 0, &info)) {
    memset(&info, 0, sizeof info);
    info.si_signo = signal;
  }
  if (s->queued_count < MAX_QUEUED) s->queued[s->queued_count++] = info;
}

bool is_syscall_stop(int status) { return WSTOPSIG(status) == (SIGTRAP | 0x80); }

/* Continues with `request` until `wanted` says that this is the stop. */
static int run_until(struct session *s, int request, bool (*wanted)(int status)) {
  for (;;) {
    int status;
    if (resume_with(s, request) || session_stop(s, s->in.pid, -1, &status)) return -1;
    if (wanted(status)) return 0;
    if (EVENT_OF(status) == 0 && !is_syscall_stop(status)) queue_signal(s, WSTOPSIG(status));
  }
}

bool is_trap_stop(int status) { return EVENT_OF(status) == PTRACE_EVENT_STOP; }

/* ---- registers and memory ---- */

static int set_regs(struct inject *in, const struct user_regs_struct *regs) {
  return ptrace(PTRACE_SETREGS, in->pid, 0, regs) ? fail(in->fault, errno, "set registers") : 0;
}
static int get_regs(struct inject *in, struct user_regs_struct *regs) {
  return ptrace(PTRACE_GETREGS, in->pid, 0, regs) ? fail(in->fault, errno, "get registers") : 0;
}

int target_read(struct inject *in, uint64_t from, void *into, size_t length) {
  struct iovec local = {into, length}, remote = {(void *)(uintptr_t)from, length};
  ssize_t n = process_vm_readv(in->pid, &local, 1, &remote, 1, 0);
  return n == (ssize_t)length ? 0 : fail(in->fault, n < 0 ? errno : EFAULT, "read %zu bytes of process %d", length, in->pid);
}

int target_write(struct inject *in, uint64_t to, const void *from, size_t length) {
  struct iovec local = {(void *)(uintptr_t)from, length}, remote = {(void *)(uintptr_t)to, length};
  ssize_t n = process_vm_writev(in->pid, &local, 1, &remote, 1, 0);
  return n == (ssize_t)length ? 0 : fail(in->fault, n < 0 ? errno : EFAULT, "write %zu bytes of process %d", length, in->pid);
}

/* The thread's state as it will go on: an interrupted system call starts again, as the kernel itself would have done it. */
static void settle_restart(struct user_regs_struct *r) {
  if ((int64_t)r->orig_rax >= 0) {
    switch (-(int64_t)r->rax) {
      case ERESTARTSYS:
      case ERESTARTNOINTR:
      case ERESTARTNOHAND:
        r->rax = r->orig_rax;
        r->rip -= 2;
        break;
      case ERESTART_RESTARTBLOCK: /* goes on with the time that is left */
        r->rax = SYS_restart_syscall;
        r->rip -= 2;
        break;
    }
  }
  r->orig_rax = UINT64_MAX; /* not in a system call: the kernel is to restart nothing by itself */
}

/* ---- the stub's place ---- */

struct vdso {
  uint64_t start, end;
};
static bool see_vdso(const struct mapping *m, void *arg) {
  if (strcmp(m->name, "[vdso]")) return true;
  *(struct vdso *)arg = (struct vdso){m->start, m->end};
  return false;
}

/* That of the VMM, once it was seen: to read its list of mappings takes a millisecond, and one session is a pause. */
static struct vdso known;

static int find_stub_place(struct inject *in) {
  struct vdso v = in->pid == vmm.pid ? known : (struct vdso){0, 0};
  if (v.start == 0 && maps_each(in->pid, see_vdso, &v, in->fault)) return -1;
  Elf64_Ehdr header;
  if (v.start == 0) return fail(in->fault, ENOTSUP, "process %d has no vdso", in->pid);
  if (target_read(in, v.start, &header, sizeof header)) return -1;
  uint64_t at = (v.start + header.e_shoff + 15) & ~15ull, size = (uint64_t)(stub_end - stub_begin);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_shoff < sizeof header || header.e_shoff > v.end - v.start || at + size > v.end)
    return fail(in->fault, ENOTSUP, "no room in the vdso of process %d", in->pid);
  in->stub = at;
  if (in->pid == vmm.pid) known = v;
  return 0;
}

static int poke(struct inject *in, uint64_t at, const uint64_t *words, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ptrace(PTRACE_POKEDATA, in->pid, at + 8 * i, words[i])) return fail(in->fault, errno, "write into the vdso");
  return 0;
}

static size_t stub_words(void) { return (size_t)(stub_end - stub_begin) / 8; }

/* Lays the stub down, made to lead back to `resume`. */
static int place_stub(struct session *s) {
  struct inject *in = &s->in;
  in->stack = (in->resume.rsp - STACK_GAP) & ~63ull;
  const struct user_regs_struct *r = &in->resume;
  uint64_t words[MAX_STUB_WORDS], flags = r->eflags & ~0x100ull; /* without the trap flag */
  memcpy(words, stub_begin, stub_words() * 8);
  struct stub_state state = {in->stack, r->rax, r->rbx, r->rcx, r->rdx, r->rsi, r->rdi, r->rbp, r->r8, r->r9,
                             r->r10, r->r11, r->r12, r->r13, r->r14, r->r15, r->rsp, r->rip};
  memcpy((uint8_t *)words + (stub_state - stub_begin), &state, sizeof state);
  if (target_write(in, in->stack, &flags, sizeof flags)) return -1;
  return poke(in, in->stub, words, stub_words());
}

/* The stub, where nothing has been placed yet. */
static int place(struct session *s) {
  if (find_stub_place(&s->in) || target_read(&s->in, s->in.stub, s->original, stub_words() * 8)) return -1;
  s->placed = true;
  return place_stub(s);
}

/* ---- begin and end ---- */

int session_seize(struct session *s) {
  struct inject *in = &s->in;
  unsigned long options = PTRACE_O_TRACESYSGOOD;
  if (s->flags & INJECT_SUSPEND_FILTER) options |= PTRACE_O_SUSPEND_SECCOMP;
  if (ptrace(PTRACE_SEIZE, in->pid, 0, options)) {
    int error = errno;
    return fail(in->fault, error, "ptrace of process %d is refused (%s)", in->pid, strerror(error));
  }
  if (ptrace(PTRACE_INTERRUPT, in->pid, 0, 0)) return fail(in->fault, errno, "interrupt process %d", in->pid);
  int status;
  for (;;) {
    if (session_stop(s, in->pid, -1, &status)) return -1;
    if (is_trap_stop(status)) break;
    /* Nothing of ours is in place yet: a signal takes its ordinary way, then the thread stops. */
    if (ptrace(PTRACE_CONT, in->pid, 0, EVENT_OF(status) ? 0 : WSTOPSIG(status)))
      return fail(in->fault, errno, "continue process %d", in->pid);
  }
  if (WSTOPSIG(status) != SIGTRAP) return fail(in->fault, EBUSY, "process %d is stopped by signal %d; continue it first", in->pid, WSTOPSIG(status));
  return 0;
}

static int attach(struct session *s) {
  if (session_seize(s) || get_regs(&s->in, &s->in.resume)) return -1;
  settle_restart(&s->in.resume);
  return place(s);
}

/* Sends what was kept back. A signal of the kernel cannot be sent with its details: then its number alone. */
static void send_queued(struct session *s) {
  for (int i = 0; i < s->queued_count; i++) {
    siginfo_t *info = &s->queued[i];
    if (syscall(SYS_rt_tgsigqueueinfo, s->in.pid, s->in.pid, info->si_signo, info))
      syscall(SYS_tgkill, s->in.pid, s->in.pid, info->si_signo);
  }
}

static int let_go(struct session *s) {
  struct inject *in = &s->in;
  if (!s->at_entry && set_regs(in, &in->resume)) return -1;
  if (s->placed && poke(in, in->stub, s->original, stub_words())) return -1;
  send_queued(s);
  return ptrace(PTRACE_DETACH, in->pid, 0, 0) ? fail(in->fault, errno, "detach from process %d", in->pid) : 0;
}

static void run_session(struct session *s) {
  if (s->at ? session_seize(s) : attach(s)) return;
  s->result = s->at ? session_follow(s) : 0;
  if (s->result == 0) s->result = s->body(&s->in, s->arg);
  struct fault later, *first = s->in.fault;
  if (s->result) s->in.fault = &later; /* keep the first failure's words */
  if (!s->in.ended && let_go(s)) s->result = -1;
  s->in.fault = first;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
bool inject_trylock(void) { return pthread_mutex_trylock(&lock) == 0; }
void inject_unlock(void) { pthread_mutex_unlock(&lock); }

static void wake(int signal) { (void)signal; }

/* Interrupts the waits of this thread from the deadline on. */
static int start_timer(struct session *s, timer_t *timer) {
  struct sigaction action = {.sa_handler = wake};
  sigaction(SIGRTMIN, &action, NULL);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
  event._sigev_un._tid = gettid();
  int64_t left = s->in.deadline - now_us();
  if (left < 1) left = 1;
  struct itimerspec when = {.it_value = {left / 1000000, left % 1000000 * 1000}, .it_interval = {0, 10000000}};
  if (timer_create(CLOCK_MONOTONIC, &event, timer)) return fail(s->in.fault, errno, "timer");
  return timer_settime(*timer, 0, &when, NULL) ? fail(s->in.fault, errno, "timer") : 0;
}

/* In the thread that is to be the tracer. */
static void run_timed(struct session *s) {
  timer_t timer;
  pthread_mutex_lock(&lock);
  if (start_timer(s, &timer) == 0) {
    run_session(s);
    timer_delete(timer);
  }
  pthread_mutex_unlock(&lock);
}

static void *run_thread(void *arg) {
  run_timed(arg);
  return NULL;
}

static struct session new_session(pid_t pid, unsigned flags, int timeout_ms, struct fault *f) {
  return (struct session){.in = {.pid = pid, .fault = f, .deadline = now_us() + (int64_t)timeout_ms * 1000}, .flags = flags, .result = -1, .children = -1};
}

/* SIGCHLD is blocked in the whole program; stops of the target come as one. */
static int children_signals(struct fault *f) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  int fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  return fd < 0 ? fail(f, errno, "signalfd") : fd;
}

int inject_run(pid_t pid, unsigned flags, int timeout_ms, int (*body)(struct inject *, void *), void *arg, struct fault *f) {
  struct session s = new_session(pid, flags, timeout_ms, f);
  s.body = body, s.arg = arg;
  s.children = children_signals(f);
  if (s.children < 0) return -1;
  pthread_t thread;
  int error = pthread_create(&thread, NULL, run_thread, &s);
  if (error) fail(f, error, "start a thread");
  else pthread_join(thread, NULL);
  close(s.children);
  if (s.in.ended && pid == vmm.pid) vmm_ended(s.in.status);
  return s.result;
}

int inject_here(pid_t pid, unsigned flags, int timeout_ms, int (*body)(struct inject *, void *), void *arg, struct fault *f, struct ended *ended) {
  struct session s = new_session(pid, flags, timeout_ms, f);
  s.body = body, s.arg = arg;
  run_timed(&s);
  *ended = (struct ended){s.in.ended, s.in.status};
  return s.result;
}

int inject_at_open(pid_t pid, unsigned flags, int timeout_ms, struct awaited_open *at, int (*body)(struct inject *, void *), void *arg, struct fault *f, struct ended *ended) {
  struct session s = new_session(pid, flags, timeout_ms, f);
  s.body = body, s.arg = arg, s.at = at;
  s.children = children_signals(f);
  if (s.children < 0) return -1;
  run_timed(&s);
  close(s.children);
  *ended = (struct ended){s.in.ended, s.in.status};
  return s.result;
}

/* ---- calls ---- */

static int start_stub(struct inject *in, const uint8_t *entry, struct user_regs_struct r) {
  r.rip = in->stub + (uint64_t)(entry - stub_begin);
  r.rsp = in->stack;
  r.orig_rax = UINT64_MAX;
  return set_regs(in, &r);
}

/*
 * From the entry of its own open, which becomes read(-1), to the stub's end, which leads back to that open. A signal that waits is taken out of
 * the way when the thread comes to the stub.
 */
static int leave_open(struct session *s) {
  if (place(s)) return -1;
  struct user_regs_struct r = s->in.resume;
  r.rip = s->in.stub + (uint64_t)(stub_called - stub_begin);
  r.rsp = s->in.stack;
  r.orig_rax = SYS_read, r.rdi = UINT64_MAX, r.rsi = 0, r.rdx = 0;
  if (set_regs(&s->in, &r)) return -1;
  s->at_entry = false;
  return run_until(s, PTRACE_SYSCALL, is_syscall_stop);
}

/*
 * Brings the target to the entry of a system call, then makes it the one that is wanted. What it enters with is read(-1), which every VMM's
 * filter lets pass and which does nothing: the filter counts again as soon as the tracer is dead, and wherever that happens here while it
 * waits, the target has nothing in hand that it would be killed for.
 */
static int enter(struct inject *in, const uint8_t *entry, long number, const uint64_t args[6]) {
  struct session *s = session_of(in);
  struct user_regs_struct r = in->resume;
  if (s->at_entry && leave_open(s)) return -1;
  r.rax = SYS_read, r.rdi = UINT64_MAX, r.rsi = 0, r.rdx = 0;
  if (start_stub(in, entry, r) || run_until(s, PTRACE_SYSCALL, is_syscall_stop) || get_regs(in, &r)) return -1;
  if (r.rsp != in->stack || r.orig_rax != SYS_read) return fail(in->fault, EIO, "process %d is not where it was sent", in->pid);
  r.orig_rax = (uint64_t)number;
  r.rdi = args[0], r.rsi = args[1], r.rdx = args[2], r.r10 = args[3], r.r8 = args[4], r.r9 = args[5];
  return set_regs(in, &r);
}

int inject_call(struct inject *in, int64_t *result, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t g) {
  struct session *s = session_of(in);
  struct user_regs_struct r;
  const uint64_t args[6] = {a, b, c, d, e, g};
  if (enter(in, stub_begin, number, args) || run_until(s, PTRACE_SYSCALL, is_syscall_stop) || get_regs(in, &r)) return -1;
  if (r.rip != in->stub + (uint64_t)(stub_called - stub_begin))
    return fail(in->fault, EIO, "process %d left the injected call (at %llx)", in->pid, (unsigned long long)r.rip);
  *result = (int64_t)r.rax;
  return 0;
}

int inject_batch(struct inject *in, uint64_t address, int done) {
  struct session *s = session_of(in);
  struct user_regs_struct r = in->resume;
  r.rbx = address;
  if (start_stub(in, stub_batch, r) || resume_with(s, PTRACE_CONT)) return -1;
  for (;;) {
    int status;
    if (session_stop(s, in->pid, done, &status)) return -1;
    if (status == 0) break;
    if (EVENT_OF(status) == 0) queue_signal(s, WSTOPSIG(status));
    if (resume_with(s, PTRACE_CONT)) return -1;
  }
  if (ptrace(PTRACE_INTERRUPT, in->pid, 0, 0)) return fail(in->fault, errno, "interrupt process %d", in->pid);
  int status;
  for (;;) {
    if (session_stop(s, in->pid, -1, &status)) return -1;
    if (is_trap_stop(status)) break;
    if (EVENT_OF(status) == 0) queue_signal(s, WSTOPSIG(status));
    if (resume_with(s, PTRACE_CONT)) return -1;
  }
  if (get_regs(in, &r)) return -1;
  if (r.rip >= in->stub && r.rip < in->stub + stub_words() * 8) return 0; /* on its way home; `resume` is where that leads */
  /* It was home and has gone on: from here it resumes. */
  settle_restart(&r);
  in->resume = r;
  return place_stub(s);
}

static bool is_fork_or_syscall_stop(int status) {
  return is_syscall_stop(status) || EVENT_OF(status) == PTRACE_EVENT_FORK || EVENT_OF(status) == PTRACE_EVENT_CLONE;
}

static int set_options(struct session *s, unsigned long extra) {
  unsigned long options = PTRACE_O_TRACESYSGOOD | extra;
  if (s->flags & INJECT_SUSPEND_FILTER) options |= PTRACE_O_SUSPEND_SECCOMP;
  return ptrace(PTRACE_SETOPTIONS, s->in.pid, 0, options) ? fail(s->in.fault, errno, "set ptrace options") : 0;
}

/* From the entry of clone to its exit, past the event that names the clone. */
static int follow_clone(struct session *s, pid_t *clone) {
  for (;;) {
    struct __ptrace_syscall_info info;
    if (run_until(s, PTRACE_SYSCALL, is_fork_or_syscall_stop)) return -1;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, s->in.pid, sizeof info, &info) < 0) return fail(s->in.fault, errno, "syscall info");
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) return 0;
    unsigned long message = 0;
    if (ptrace(PTRACE_GETEVENTMSG, s->in.pid, 0, &message)) return fail(s->in.fault, errno, "event message");
    *clone = (pid_t)message;
  }
}

/* One attempt; *result as the kernel gave it. */
static int try_clone(struct session *s, pid_t *clone, int64_t *result) {
  struct user_regs_struct r;
  /* A stack at address 8: should the clone ever run, not even a signal handler of the VMM's can catch what happens to it. */
  const uint64_t args[6] = {CLONE_PARENT | SIGCHLD, 8, 0, 0, 0, 0};
  *clone = 0;
  if (enter(&s->in, stub_clone, SYS_clone, args) || follow_clone(s, clone) || get_regs(&s->in, &r)) return -1;
  *result = (int64_t)r.rax;
  return 0;
}

static unsigned long clone_options(unsigned flags) {
  return PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | (flags & INJECT_SUSPEND_FILTER ? PTRACE_O_SUSPEND_SECCOMP : 0);
}

int inject_clone(struct inject *in, pid_t *clone) {
  struct session *s = session_of(in);
  int64_t result = -ERESTARTNOINTR;
  int status;
  if (set_options(s, PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE)) return -1;
  /* A signal that waits makes the kernel refuse; it is taken out of the way as the thread goes on. */
  for (int attempt = 0; attempt < 16 && result == -ERESTARTNOINTR; attempt++)
    if (try_clone(s, clone, &result)) return -1;
  if (set_options(s, 0)) return -1;
  if (result < 0) return fail(in->fault, (int)-result, "clone of process %d: %s", in->pid, strerror((int)-result));
  if (session_stop(s, *clone, -1, &status)) return -1;
  return ptrace(PTRACE_SETOPTIONS, *clone, 0, clone_options(s->flags)) ? fail(in->fault, errno, "bind the clone to the shim: %s", strerror(errno)) : 0;
}

static int close_all(struct session *s, uint64_t stub) {
  struct user_regs_struct r;
  if (get_regs(&s->in, &r)) return -1;
  /* The stub's copy in the clone; its stack stays poisoned. */
  r.rip = stub, r.orig_rax = UINT64_MAX;
  r.rax = SYS_close_range, r.rdi = 0, r.rsi = UINT32_MAX, r.rdx = 0;
  if (set_regs(&s->in, &r) || run_until(s, PTRACE_SYSCALL, is_syscall_stop) || run_until(s, PTRACE_SYSCALL, is_syscall_stop)) return -1;
  if (get_regs(&s->in, &r)) return -1;
  return r.rax == 0 ? 0 : fail(s->in.fault, (int)-(int64_t)r.rax, "close the clone's descriptors: %s", strerror((int)-(int64_t)r.rax));
}

int inject_close_all(pid_t clone, const struct inject *made_with, unsigned flags, int timeout_ms, struct fault *f) {
  struct session s = new_session(clone, flags, timeout_ms, f);
  timer_t timer;
  pthread_mutex_lock(&lock);
  if (start_timer(&s, &timer) == 0) {
    s.result = close_all(&s, made_with->stub);
    timer_delete(timer);
  }
  pthread_mutex_unlock(&lock);
  return s.result;
}
