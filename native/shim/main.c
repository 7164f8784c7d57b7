/*
 * forkd-shim: the parent of one VMM. It starts it, outlives the daemon, reaps it, keeps how it ended, and lays memory into it.
 *
 *   forkd-shim --start DIR   a daemon starts it so; descriptor 3 is the first connection
 *   forkd-shim --adopt DIR   the same for a VMM whose shim has died
 *   forkd-shim --probe       prints what it may do on this host
 *   forkd-shim --tsc         prints the rate of the time stamp counter, kHz
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "inject.h"
#include "shim.h"
#include "tsc.h"

#define FIRST_CONNECTION 3
#define MAX_POLLED 32
#define REAP_AGAIN_MS 5
/* How long the answer to "how did it end" is kept for a daemon that does not come. */
#define UNCLAIMED_US (24ll * 3600 * 1000000)

void note(const char *format, ...) {
  char text[512], when[32];
  time_t now = time(NULL);
  struct tm parts;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  dprintf(2, "%s %s\n", when, text);
}

void vmm_ended(int status) {
  if (vmm.ended) return;
  vmm.ended = true;
  vmm.exit_kind = status < 0 || vmm.adopted ? EXIT_UNKNOWN : WIFEXITED(status) ? EXIT_EXITED : EXIT_SIGNALED;
  vmm.exit_value = vmm.exit_kind == EXIT_UNKNOWN ? 0 : WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : (uint32_t)WTERMSIG(status);
  struct fault f;
  if (write_record(&f)) note("%s", f.text);
  announce_exit(NULL);
}

static bool unreaped; /* a child may wait: it could not be asked for just now */

void reap(void) {
  /* Stops of a VMM that is being frozen are not ours to take. That lasts milliseconds. */
  unreaped = !inject_trylock();
  if (unreaped) return;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    if (pid == vmm.pid) vmm_ended(status);
  }
  inject_unlock();
}

/* This process for itself: no signals of a terminal or group, few descriptors, private files, last to be killed for memory. */
static int settle(void) {
  signal(SIGHUP, SIG_IGN), signal(SIGINT, SIG_IGN), signal(SIGTERM, SIG_IGN), signal(SIGPIPE, SIG_IGN);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_SETMASK, &child, NULL);
  umask(077);
  close_range(FIRST_CONNECTION + 1, ~0u, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  /* Not permitted to everybody; then the score stays as inherited. */
  if (score >= 0 && write(score, "-900", 4) < 0 && errno != EACCES && errno != EPERM) note("oom_score_adj: %s", strerror(errno));
  if (score >= 0) close(score);
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Refuses before there is a loop: one frame, then the end. What the daemon has sent is read first: else it would see a reset, not the reason. */
static int refuse(int type, const struct fault *f) {
  uint8_t h[SHIM_HEADER_SIZE + 4] = {'f', 's', SHIM_VERSION, (uint8_t)(type | SHIM_REPLY), 1, 0, 0, 0};
  uint32_t text = (uint32_t)strlen(f->text), length = text + 4, code = (uint32_t)f->code;
  memcpy(h + 8, &length, 4), memcpy(h + 12, &code, 4), memcpy(h + 16, &text, 4);
  if (write(FIRST_CONNECTION, h, sizeof h) < 0 || write(FIRST_CONNECTION, f->text, text) < 0) return 3;
  shutdown(FIRST_CONNECTION, SHUT_WR);
  struct pollfd p = {FIRST_CONNECTION, POLLIN, 0};
  char drop[4096];
  int64_t until = now_us() + 1000000;
  for (int64_t left; (left = until - now_us()) > 0 && poll(&p, 1, (int)(left / 1000) + 1) >= 0;)
    if (read(FIRST_CONNECTION, drop, sizeof drop) <= 0) break;
  return 1;
}

/* The run directory is this shim's alone as long as it lives: its lock says so. Returns the listening shim.sock. */
static int take_directory(const char *dir, struct fault *f) {
  if (chdir(dir)) return fail(f, errno, "run directory %.200s: %s", dir, strerror(errno));
  int log = open("shim.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (log < 0) return fail(f, errno, "open shim.log: %s", strerror(errno));
  dup2(log, 2);
  close(log);
  int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* never closed */
  if (here < 0) return fail(f, errno, "open %.200s: %s", dir, strerror(errno));
  if (flock(here, LOCK_EX | LOCK_NB)) return fail(f, EBUSY, "run directory %.200s belongs to another shim that is alive", dir);
  return listen_at("shim.sock", f);
}

static int earliest(int64_t a, int64_t b) { /* poll's milliseconds until the earlier of two times; -1: none */
  int64_t due = a < 0 ? b : b < 0 ? a : a < b ? a : b;
  if (due < 0) return -1;
  int64_t left = (due - now_us() + 999) / 1000;
  return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

static void loop(int children) {
  int logs = -1;
  int64_t unclaimed = -1;
  while (!(vmm.ended && end_requested)) {
    struct pollfd p[MAX_POLLED];
    int64_t resume_due;
    if (vmm.pid && logs < 0 && !vmm.ended) logs = log_watch();
    if (!vmm.pid && conns_open() == 0) return; /* the daemon has gone before it said what to start */
    if (!vmm.ended || conns_open()) unclaimed = -1;
    else if (unclaimed < 0) unclaimed = now_us() + UNCLAIMED_US;
    if (unclaimed >= 0 && now_us() >= unclaimed) return;
    p[0] = (struct pollfd){capture_takes_children() ? -1 : children, POLLIN, 0};
    p[1] = (struct pollfd){vmm.adopted && !vmm.ended ? vmm.pidfd : -1, POLLIN, 0};
    p[2] = (struct pollfd){logs, POLLIN, 0};
    p[3].revents = 0;
    p[3].fd = resume_poll(&p[3].events, &resume_due);
    p[4] = (struct pollfd){capture_poll(), POLLIN, 0};
    int n = conns_poll(p + 5, MAX_POLLED - 5);
    int wait = earliest(resume_due, unclaimed);
    if (unreaped && (wait < 0 || wait > REAP_AGAIN_MS)) wait = REAP_AGAIN_MS;
    if (poll(p, (nfds_t)n + 5, wait) < 0 && errno != EINTR) {
      note("poll: %s", strerror(errno));
      return;
    }
    if (p[0].revents) {
      struct signalfd_siginfo drop[8];
      while (read(children, drop, sizeof drop) > 0) continue;
    }
    reap();
    if (p[1].revents) vmm_ended(-1);
    if (p[2].revents) log_trim(logs);
    resume_step(p[3].revents);
    if (p[4].revents) capture_step();
    conns_serve(p + 5, n);
    reap(); /* a request or a capture may have taken a child's signal */
  }
}

static int probe(void) {
  struct abilities a;
  probe_abilities(&a);
  printf("%u %s\n", a.bits, a.reason);
  return 0;
}

int main(int argc, char **argv) {
  bool adopts = argc == 3 && !strcmp(argv[1], "--adopt");
  if (argc == 2 && !strcmp(argv[1], "--tsc")) return tsc_main();
  if (argc == 2 && !strcmp(argv[1], "--probe")) {
    settle();
    return probe();
  }
  if (!adopts && !(argc == 3 && !strcmp(argv[1], "--start"))) {
    fprintf(stderr, "usage: forkd-shim --start DIR | --adopt DIR | --probe | --tsc\n(the daemon runs it, with a connection on descriptor 3)\n");
    return 2;
  }
  struct fault f;
  int children = settle(), listener = take_directory(argv[2], &f);
  if (listener < 0) return refuse(adopts ? SF_ADOPT : SF_START, &f);
  fcntl(FIRST_CONNECTION, F_SETFD, FD_CLOEXEC);
  conns_start(FIRST_CONNECTION, listener);
  loop(children);
  capture_abort();
  remove_sockets();
  return 0;
}
