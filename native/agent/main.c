/*
 * forkd-agent: as pid 1 of a guest it makes the machine ready and serves the host for as long as that lives.
 *
 *   forkd-agent                            pid 1
 *   forkd-agent --fd N [--root DIR]        on an inherited socket, on any machine, touching nothing of it: tests use this
 *   forkd-agent --listen PATH [--root DIR] the same on a unix socket; a new connection replaces the old one
 */
#include "agent.h"
#include "session.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64

struct options options = {.real = false, .root = "/"};

static int epoll = -1;
static struct epoll_event batch[BATCH];
static int batch_size;
static struct timer *timers;
static bool stopping;
static int exit_code;

void log_line(const char *format, ...) {
  char line[512] = "forkd-agent: ";
  size_t n = strlen(line);
  va_list list;
  va_start(list, format);
  int wrote = vsnprintf(line + n, sizeof line - n - 1, format, list);
  va_end(list);
  if (wrote > 0) n += (size_t)wrote < sizeof line - n - 1 ? (size_t)wrote : sizeof line - n - 2;
  line[n++] = '\n';
  if (write(STDERR_FILENO, line, n) < 0) return; /* nobody to tell */
}

uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- loop */

int loop_add(struct watched *w, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = w};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, w->fd, &e);
}

int loop_change(struct watched *w, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = w};
  return epoll_ctl(epoll, EPOLL_CTL_MOD, w->fd, &e);
}

void loop_remove(struct watched *w) {
  if (w->fd >= 0) epoll_ctl(epoll, EPOLL_CTL_DEL, w->fd, NULL);
  /* Its events of this turn must not reach whoever takes its place. */
  for (int i = 0; i < batch_size; i++)
    if (batch[i].data.ptr == w) batch[i].data.ptr = NULL;
}

void loop_stop(int code) {
  stopping = true;
  exit_code = code;
}

void timer_clear(struct timer *t) {
  for (struct timer **p = &timers; *p; p = &(*p)->next)
    if (*p == t) {
      *p = t->next;
      break;
    }
  t->at_ms = 0;
  t->next = NULL;
}

void timer_set(struct timer *t, uint64_t after_ms) {
  timer_clear(t);
  uint64_t now = now_ms();
  t->at_ms = after_ms > UINT64_MAX - now ? UINT64_MAX : now + after_ms;
  if (!t->at_ms) t->at_ms = 1;
  struct timer **p = &timers; /* soonest first */
  while (*p && (*p)->at_ms <= t->at_ms) p = &(*p)->next;
  t->next = *p;
  *p = t;
}

/* Fires what is due now, but not what those set anew: a timer of 0 ms must not keep the loop here. */
static void fire_timers(void) {
  uint64_t now = now_ms();
  for (int i = 0; i < 1024 && timers && timers->at_ms <= now; i++) {
    struct timer *t = timers;
    timer_clear(t);
    t->fire(t);
  }
}

static int until_next_timer(void) {
  if (!timers) return -1;
  uint64_t now = now_ms();
  if (timers->at_ms <= now) return 0;
  uint64_t left = timers->at_ms - now;
  return left > INT_MAX ? INT_MAX : (int)left;
}

/* ---- signals */

static void signal_ready(struct watched *w, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  while (read(w->fd, &info, sizeof info) == sizeof info)
    if (info.ssi_signo != SIGCHLD) loop_stop(128 + (int)info.ssi_signo);
  /* One SIGCHLD may stand for many. */
  for (;;) {
    int status;
    struct rusage usage;
    pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid > 0)
      process_reaped(pid, status, &usage);
    else if (pid == 0 || errno != EINTR)
      return;
  }
}

static struct watched signals = {.fd = -1, .ready = signal_ready};

static int watch_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  if (!options.real) {
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
  }
  signal(SIGPIPE, SIG_IGN);
  if (sigprocmask(SIG_BLOCK, &set, NULL)) return -1;
  signals.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  return signals.fd < 0 ? -1 : loop_add(&signals, EPOLLIN);
}

/* ---- standing while the guest's own programs take all there is */

static void hold_ground(void) {
  struct rlimit files = {65536, 1048576};
  if (setrlimit(RLIMIT_NOFILE, &files)) log_line("cannot raise the limit of open files: %s", strerror(errno));
  /* Only pages that exist are locked: the rings of 288 requests are address space, not memory. */
  if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) log_line("cannot lock memory: %s", strerror(errno));
  volatile char stack[128 * 1024];
  for (size_t i = 0; i < sizeof stack; i += 4096) stack[i] = 0;
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "-1000", 5) != 5) log_line("cannot be spared by the OOM killer: %s", strerror(errno));
  if (fd >= 0) close(fd);
  setpriority(PRIO_PROCESS, 0, -20);
  /* What it starts gets an ordinary priority again. By number: musl's function refuses. */
  struct sched_param ahead = {.sched_priority = 1}, plain = {.sched_priority = 0};
  if (syscall(SYS_sched_setscheduler, 0, SCHED_RR | SCHED_RESET_ON_FORK, &ahead))
    syscall(SYS_sched_setscheduler, 0, SCHED_OTHER | SCHED_RESET_ON_FORK, &plain);
}

/*
 * A program that prints small pieces would be interrupted at each by an agent that runs ahead of it, and each would cost a
 * frame and its acknowledgement: where only output flows, and little at a time, it gets a moment to print more.
 */
static void gather(void) {
  struct timespec moment = {.tv_nsec = 1000000};
  nanosleep(&moment, NULL);
}

/* ---- host-side */

static int listen_at(const char *path) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof a.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(a.sun_path, path, strlen(path) + 1);
  unlink(path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8)) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Ends all that it started, and what those left behind: as their subreaper it gets every orphan. */
static void end_children(void) {
  for (int round = 0; round < 200; round++) {
    DIR *d = opendir("/proc/self/task");
    if (!d) return;
    bool any = false;
    for (struct dirent *e; (e = readdir(d));) {
      char path[300];
      snprintf(path, sizeof path, "/proc/self/task/%s/children", e->d_name);
      FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
      if (!f) continue;
      for (int pid; fscanf(f, "%d", &pid) == 1; any = true) kill(pid, SIGKILL);
      fclose(f);
    }
    closedir(d);
    if (!any) return;
    wait(NULL);
  }
}

static int usage(void) {
  fprintf(stderr, "usage: forkd-agent (--fd N | --listen PATH) [--root DIR]    without arguments only as pid 1\n");
  return 2;
}

int main(int argc, char **argv) {
  int fd = -1;
  const char *path = NULL;
  options.real = getpid() == 1 && argc < 2;
  for (int i = 1; i < argc; i++) {
    char *end = NULL;
    if (!strcmp(argv[i], "--fd") && i + 1 < argc) {
      fd = (int)strtol(argv[++i], &end, 10);
      if (end == argv[i] || *end || fcntl(fd, F_GETFD) < 0) {
        fprintf(stderr, "forkd-agent: --fd %s is not an open descriptor\n", argv[i]);
        return 2;
      }
    } else if (!strcmp(argv[i], "--listen") && i + 1 < argc) {
      path = argv[++i];
    } else if (!strcmp(argv[i], "--root") && i + 1 < argc) {
      options.root = argv[++i];
    } else if (!options.real) {
      return usage();
    }
  }
  if (!options.real && (fd < 0) == !path) return usage();

  if (options.real) init_machine();
  epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0 || watch_signals()) {
    log_line("cannot start: %s", strerror(errno));
    return 1;
  }
  slots_init();
  if (options.real) {
    hold_ground();
    init_transport();
  } else {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (path && (fd = listen_at(path)) < 0) {
      log_line("cannot listen at %s: %s", path, strerror(errno));
      return 1;
    }
    if (conn_open(NULL, fd)) {
      log_line("cannot serve descriptor %d: %s", fd, strerror(errno));
      return 1;
    }
  }

  while (!stopping) {
    fire_timers();
    bool busy = conn_step();
    if (stopping) break;
    if (!busy && conn_trickles()) gather();
    batch_size = epoll_wait(epoll, batch, BATCH, busy ? 0 : until_next_timer());
    for (int i = 0; i < batch_size; i++) {
      struct watched *w = batch[i].data.ptr;
      if (w) w->ready(w, batch[i].events);
    }
    batch_size = 0;
  }
  end_children();
  if (path) unlink(path);
  return exit_code;
}
