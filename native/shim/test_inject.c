/*
 * Kills the tracer at every ptrace stop of an injection, one after another, and looks whether the target lives on, unharmed. Prints one line
 * of what it saw; exits 0 when all is right. Needs what the probe needs, or says "skipped".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inject.h"

/* What the program's other parts would be. */
struct vmm vmm = {.pidfd = -1};
void vmm_ended(int status) { (void)status; }

#define CALLS 40
static struct { /* shared with target and tracer */
  volatile long turns, wrong, signals, batched;
} *seen;

static void on_signal(int n) {
  (void)n;
  seen->signals++;
}

enum kind { WAITING, COMPUTING, OPENING, KINDS };
static const char *const kinds[] = {"waiting", "computing", "opening"};
static char place[] = "/tmp/test_inject-XXXXXX"; /* a directory */

/* As a VMM saves its state: a file is written, then a directory is opened to be written to. */
static void save(void) {
  char file[64];
  snprintf(file, sizeof file, "%s/state", place);
  int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, file, sizeof file) != sizeof file || close(fd)) seen->wrong++;
  if (open(place, O_WRONLY | O_CREAT, 0600) != -1 || errno != EISDIR) seen->wrong++;
}

/* A VMM's main thread: mostly waits, sometimes computes; each wait has to end by its time-out or by our signal, and nothing may be lost between. */
static void target(enum kind kind) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &action, NULL);
  if (forbid_clone_and_mmap()) _exit(9);
  double sum = 0;
  for (unsigned long i = 1;; i++) {
    struct timespec nap = {0, 2000000};
    if (kind == OPENING) save();
    if (kind != COMPUTING) {
      int n = ppoll(NULL, 0, &nap, NULL);
      if (n != 0 && !(n < 0 && errno == EINTR)) seen->wrong++;
    }
    unsigned long a = i, b = i * 3, c = i * 5, d = i * 7;
    double x = 1.5;
    for (int k = 0; k < 2000; k++) a += 1, b += 3, c += 5, d += 7, x += 0.5;
    if (a != i + 2000 || b != i * 3 + 6000 || c != i * 5 + 10000 || d != i * 7 + 14000 || x != 1001.5) seen->wrong++;
    sum += x;
    if (sum != 1001.5 * (double)i) seen->wrong++;
    seen->turns++;
  }
}

static int batch(struct inject *in, uint64_t scratch) {
  int pair[2], ours;
  int64_t r;
  if (inject_call(in, &r, SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, scratch, 0, 0) || r) return -1;
  if (target_read(in, scratch, pair, sizeof pair)) return -1;
  int pidfd = (int)syscall(SYS_pidfd_open, in->pid, 0);
  ours = (int)syscall(SYS_pidfd_getfd, pidfd, pair[1], 0);
  close(pidfd);
  if (ours < 0) return fail(in->fault, errno, "pidfd_getfd");
  struct call calls[CALLS + 3];
  for (int i = 0; i < CALLS; i++) calls[i] = (struct call){SYS_mmap, {0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX, 0}, -1};
  calls[CALLS] = (struct call){SYS_close, {(uint64_t)pair[1]}, -1};
  calls[CALLS + 1] = (struct call){SYS_close, {(uint64_t)pair[0]}, 0};
  calls[CALLS + 2] = (struct call){CALL_END, {0}, 0};
  int result = target_write(in, scratch + 64, calls, sizeof calls) || inject_batch(in, scratch + 64, ours) || target_read(in, scratch + 64, calls, sizeof calls);
  close(ours);
  for (int i = 0; i < CALLS && !result; i++) {
    if (calls[i].result < 0 && calls[i].result > -4096) return fail(in->fault, EIO, "call %d of the batch failed", i);
    seen->batched++;
    if (inject_call(in, &r, SYS_munmap, (uint64_t)calls[i].result, 4096, 0, 0, 0, 0)) return -1;
    i += CALLS / 4; /* a few are enough */
  }
  return result ? -1 : 0;
}

static int body(struct inject *in, void *arg) {
  int64_t at, r;
  pid_t clone;
  if (inject_call(in, &at, SYS_mmap, 0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX, 0)) return -1;
  if (at < 0 && at > -4096) return fail(in->fault, (int)-at, "mmap");
  if (!arg) syscall(SYS_tgkill, in->pid, in->pid, SIGUSR1); /* arrives amid the injection: has to be kept and delivered afterwards */
  if (batch(in, (uint64_t)at) || inject_clone(in, &clone)) return -1;
  kill(clone, SIGKILL);
  waitpid(clone, NULL, __WALL);
  return inject_call(in, &r, SYS_munmap, (uint64_t)at, 8192, 0, 0, 0, 0);
}

/* From the entry of an open, with a signal that waits already. */
static int open_body(struct inject *in, void *arg) {
  int64_t r;
  pid_t clone;
  (void)arg;
  syscall(SYS_tgkill, in->pid, in->pid, SIGUSR1);
  if (inject_clone(in, &clone)) return -1;
  kill(clone, SIGKILL);
  waitpid(clone, NULL, __WALL);
  return inject_call(in, &r, SYS_getpid, 0, 0, 0, 0, 0, 0) || r != in->pid ? -1 : body(in, &r);
}

static int nothing_to_begin(void *arg) { return (void)arg, 0; }
static int look_only(struct inject *in, void *arg) { return (void)in, (void)arg, 0; }

/* Where the target opens its directory; with `answered` readable it may never. */
static int at_open(pid_t victim, const char *path, int answered, int (*with)(struct inject *, void *), bool *first, struct fault *f) {
  struct awaited_open at = {.path = path, .begin = nothing_to_begin, .answered = answered};
  struct ended ended;
  int result = inject_at_open(victim, INJECT_SUSPEND_FILTER, 3000, &at, with, NULL, f, &ended);
  *first = at.answered_first;
  return result;
}

static int trace(pid_t victim, enum kind kind, struct fault *f) {
  int never[2];
  bool first;
  if (kind != OPENING) return inject_run(victim, INJECT_SUSPEND_FILTER, 3000, body, NULL, f);
  if (pipe2(never, O_CLOEXEC)) return fail(f, errno, "pipe");
  if (at_open(victim, place, never[0], open_body, &first, f)) return -1;
  /* Looked at, and not touched; then one that is answered and never opens. */
  if (at_open(victim, place, never[0], look_only, &first, f)) return -1;
  if (write(never[1], "", 1) != 1) return fail(f, errno, "pipe");
  struct fault expected = {0, ""};
  if (at_open(victim, "/elsewhere", never[0], look_only, &first, &expected) == 0 || !first) return fail(f, EIO, "an open that never came was found: %s", expected.text);
  return 0;
}

static unsigned die_at;
static void at_stop(unsigned stop) {
  if (stop == die_at) kill(getpid(), SIGKILL);
}

static bool turns_on(long turns) {
  long from = seen->turns;
  for (int64_t until = now_us() + 5000000; now_us() < until;) {
    if (seen->turns >= from + turns) return true;
    poll(NULL, 0, 2);
  }
  return false;
}

/* 1: the tracer came through, 0: it died at that stop and all is right, -1: the target was harmed. */
static int round_of(unsigned stop, enum kind kind, struct fault *f) {
  memset(seen, 0, sizeof *seen);
  pid_t victim = fork();
  if (victim == 0) target(kind);
  if (!turns_on(3)) return fail(f, EIO, "the target does not run");
  pid_t tracer = fork();
  if (tracer == 0) {
    struct fault inner = {0, ""};
    die_at = stop;
    inject_at_stop = at_stop;
    int result = trace(victim, kind, &inner);
    if (result) printf("stop %u: %s (%d)\n", stop, inner.text, inner.code);
    _exit(result ? (inner.code == EPERM ? 77 : 1) : 0);
  }
  int status, result = 0;
  waitpid(tracer, &status, 0);
  bool through = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFEXITED(status) && WEXITSTATUS(status)) result = fail(f, WEXITSTATUS(status) == 77 ? EPERM : EIO, "stop %u: the injection failed", stop);
  else if (!turns_on(5)) result = fail(f, EIO, "stop %u: the target stands still or is dead", stop);
  else if (seen->wrong) result = fail(f, EIO, "stop %u: the target saw %ld wrong results", stop, seen->wrong);
  else if (through && seen->signals != 1) result = fail(f, EIO, "a signal amid the injection arrived %ld times", seen->signals);
  /* The clone is our child (CLONE_PARENT): it has to be dead. */
  for (int64_t until = now_us() + 2000000; result == 0;) {
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | __WALL) || info.si_pid == 0) {
      char path[64], line[64] = "";
      snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
      FILE *file = fopen(path, "r");
      if (!file || !fgets(line, sizeof line, file)) line[0] = 0;
      if (file) fclose(file);
      if (atoi(line) == victim && !strchr(line, ' ')[1]) break;
      if (now_us() > until) result = fail(f, EIO, "stop %u: a clone lives on (%s)", stop, line);
      poll(NULL, 0, 2);
    } else if (info.si_pid == victim) result = fail(f, EIO, "stop %u: the target ended (%d)", stop, info.si_status);
  }
  kill(victim, SIGKILL);
  while (waitpid(-1, NULL, __WALL) > 0) continue;
  return result ? -1 : through;
}

static void clean(void) {
  char file[64];
  snprintf(file, sizeof file, "%s/state", place);
  unlink(file);
  rmdir(place);
}

int main(void) {
  struct fault f = {0, ""};
  setbuf(stdout, NULL);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, NULL);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!mkdtemp(place)) return 1;
  for (enum kind kind = 0; kind < KINDS; kind++) {
    unsigned stop = 0;
    for (int through = 0; !through; stop++) {
      through = round_of(stop == 0 ? UINT32_MAX : stop, kind, &f);
      if (stop == 0 && through == 1) through = 0; /* undisturbed first */
      if (through < 0) {
        printf("%s%s\n", f.code == EPERM ? "skipped: " : "FAILED: ", f.text);
        clean();
        return f.code == EPERM ? 77 : 1;
      }
    }
    printf("%s target: the tracer died at each of %u stops\n", kinds[kind], stop - 2);
  }
  clean();
  return 0;
}
