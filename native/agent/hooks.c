/*
 * Hooks of /etc/forkd/resume.d.
 *
 *   agent --fork--> waiter (leads a process group) --fork--> hook
 *   agent <--pipe-- waiter: the hook's wait status
 *
 * The waiter is there because the agent, as pid 1, reaps all children in one place that knows of processes of the table only. At the
 * time limit the group is killed.
 */
#include "dirents.h"
#include "machine.h"
#include "paths.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#define DIRECTORY "/etc/forkd/resume.d"
#define HOOKS 64
#define LIMIT_MS 5000
#define ENVIRONMENT 4096
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static struct hook_result results[HOOKS];
static size_t count, next;
static bool running;
static void (*ended)(void);
static char generation_variable[64];

static void run_next(void);
static void on_pipe(struct watched *w, uint32_t events);
static void on_limit(struct timer *t);
static struct watched status_pipe = {.fd = -1, .ready = on_pipe};
static struct timer limit = {.fire = on_limit};
static pid_t waiter;

bool hooks_running(void) {
  return running;
}
size_t hooks_count(void) {
  return count;
}
const struct hook_result *hooks_result(size_t index) {
  return &results[index];
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const struct hook_result *)a)->name, ((const struct hook_result *)b)->name);
}

/* Executable files whose name does not begin with a dot. */
static void collect(void) {
  static char buffer[16384] __attribute__((aligned(8)));
  count = next = 0;
  int fd = path_open(DIRECTORY, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
  if (fd < 0) return;
  ssize_t n;
  while ((n = entries_read(fd, buffer, sizeof buffer)) > 0) {
    for (ssize_t at = 0; at < n;) {
      struct entry *e = entry_at(buffer, at);
      struct stat st;
      at += e->size;
      if (e->name[0] == '.' || fstatat(fd, e->name, &st, 0) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & 0111)) continue;
      if (count == HOOKS) {
        log_line("%s: only the first %d hooks are run", DIRECTORY, HOOKS);
        break;
      }
      snprintf(results[count++].name, sizeof results[0].name, "%s", e->name);
    }
  }
  close(fd);
  qsort(results, count, sizeof results[0], by_name);
}

static void finish_one(uint32_t outcome, uint32_t code) {
  results[next].outcome = outcome;
  results[next].code = code;
  timer_clear(&limit);
  if (status_pipe.fd >= 0) {
    loop_remove(&status_pipe);
    close(status_pipe.fd);
  }
  status_pipe.fd = -1;
  next++;
  run_next();
}

static void on_pipe(struct watched *w, uint32_t events) {
  int status = 0;
  (void)events;
  ssize_t n = read(w->fd, &status, sizeof status);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n != sizeof status) finish_one(1, 128 + SIGKILL); /* the waiter itself was killed */
  else if (WIFEXITED(status)) finish_one(WEXITSTATUS(status) ? 1 : 0, (uint32_t)WEXITSTATUS(status));
  else finish_one(1, 128 + (uint32_t)WTERMSIG(status));
}

static void on_limit(struct timer *t) {
  (void)t;
  log_line("hook %s took over %d ms and was killed", results[next].name, LIMIT_MS);
  kill(-waiter, SIGKILL);
  finish_one(2, 128 + SIGKILL);
}

/* After fork in a process with threads: calls nothing that may lock. */
static void waiter_main(const char *path, int pipe_fd, char **environment) {
  sigset_t all, none;
  int status = 0;
  sigfillset(&all);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &all, NULL);
  setsid();
  /* Nothing of the agent's stays open here but the pipe, kept as 3, and the console. */
  if (pipe_fd != 3) dup3(pipe_fd, 3, O_CLOEXEC);
  syscall(SYS_close_range, 4, ~0u, 0);
  int score = open("/proc/self/oom_score_adj", O_WRONLY); /* the agent is spared by the OOM killer, a hook is not */
  if (score >= 0 && write(score, "0", 1) < 0) status = 0; /* where it was not spared either */
  if (score > 3) close(score);
  int null = open("/dev/null", O_RDONLY);
  if (null > 0) dup2(null, 0);
  if (null > 3) close(null);
  status = 127 << 8; /* when it cannot fork */
  pid_t hook = fork();
  if (hook == 0) {
    char *arguments[] = {(char *)(uintptr_t)path, NULL};
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir("/") == 0) execve(path, arguments, environment);
    _exit(errno == ENOENT ? 127 : 126);
  }
  while (hook > 0 && waitpid(hook, &status, 0) < 0 && errno == EINTR)
    ;
  if (write(3, &status, sizeof status) < 0) _exit(1);
  _exit(0);
}

static char **hook_environment(void) {
  static char *environment[ENVIRONMENT + 4];
  size_t n = 0;
  environment[n++] = (char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  environment[n++] = (char *)"HOME=/root";
  environment[n++] = generation_variable;
  for (size_t i = 0; i < ENVIRONMENT && hello_env(i); i++)
    environment[n++] = (char *)(uintptr_t)hello_env(i);
  environment[n] = NULL;
  return environment;
}

/* 0 or an errno. */
static int start(const char *path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) return errno;
  char **environment = hook_environment();
  waiter = fork();
  if (waiter == 0) waiter_main(path, ends[1], environment);
  int err = waiter < 0 ? errno : 0;
  close(ends[1]);
  status_pipe.fd = ends[0];
  if (!err && loop_add(&status_pipe, EPOLLIN) < 0) err = errno;
  if (err && waiter > 0) kill(waiter, SIGKILL);
  if (err) {
    close(ends[0]);
    status_pipe.fd = -1;
    return err;
  }
  timer_set(&limit, LIMIT_MS);
  return 0;
}

static void run_next(void) {
  while (next < count) {
    char path[PATH_MAX];
    const char *root = options.real ? "" : options.root;
    snprintf(path, sizeof path, "%s%s/%s", root, DIRECTORY, results[next].name);
    int err = start(path);
    if (err == 0) return;
    results[next].outcome = 1;
    results[next].code = (uint32_t)err;
    next++;
  }
  running = false;
  ended();
}

void hooks_run(const char *generation, void (*end)(void)) {
  ended = end;
  running = true;
  snprintf(generation_variable, sizeof generation_variable, "FORKD_GENERATION=%s", generation);
  collect();
  run_next();
}
