/*
 * Cgroups: who belongs to a process, in whatever session it hides.
 *
 *   /sys/fs/cgroup/forkd             memory.max and pids.max of all that is not the agent
 *   /sys/fs/cgroup/forkd/user        frozen and thawed as a whole
 *   /sys/fs/cgroup/forkd/user/7      the process of handle 7 and its descendants; one OOM kill takes all of them
 *   /sys/fs/cgroup/forkd/interp/...  the same for interpreters
 *
 * The agent stays in the root group, where nothing limits it.
 */
#include "process.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOT "/sys/fs/cgroup"
#define TOP ROOT "/forkd"

enum {
  AGENT_PIDS = 64,
  AGENT_MEMORY = 24 << 20, /* bytes, or 5 % of all memory where that is more */
  FREEZE_MS = 1000,        /* a task in uninterruptible sleep freezes late: do not wait for ever */
  DEEPEST = 8,             /* levels of groups that users made below theirs */
  PATH = 512,
};

static const char *kind(bool interpreter) {
  return interpreter ? "interp" : "user";
}

static int put(const char *directory, const char *file, const char *text) {
  char path[PATH + 64];
  snprintf(path, sizeof path, "%s/%s", directory, file);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  int result = write(fd, text, strlen(text)) < 0 ? -errno : 0;
  close(fd);
  return result;
}

static int get(const char *directory, const char *file, char *to, size_t capacity) {
  char path[PATH + 64];
  snprintf(path, sizeof path, "%s/%s", directory, file);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  ssize_t n = read(fd, to, capacity - 1);
  close(fd);
  if (n < 0)
    return -errno;
  to[n] = 0;
  return 0;
}

static uint64_t number(const char *directory, const char *file, uint64_t otherwise) {
  char text[64], *end;
  if (get(directory, file, text, sizeof text) < 0)
    return otherwise;
  uint64_t value = strtoull(text, &end, 10);
  return end == text ? otherwise : value; /* "max" */
}

/* The number after `key ` at the start of a line. */
static uint64_t keyed(const char *directory, const char *file, const char *key) {
  char text[4096];
  size_t length = strlen(key);
  if (get(directory, file, text, sizeof text) < 0)
    return 0;
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':'))
      return strtoull(line + length + 1, NULL, 10);
  }
  return 0;
}

static int delegate(const char *directory) {
  int result = put(directory, "cgroup.subtree_control", "+memory +pids");
  put(directory, "cgroup.subtree_control", "+cpu"); /* where the kernel has it, all users together weigh as much as the agent */
  return result;
}

int group_setup(void) {
  if (!options.real)
    return 0;
  static const char *const groups[] = { TOP, TOP "/user", TOP "/interp" };
  int result = delegate(ROOT);
  for (size_t i = 0; i < 3 && result == 0; i++)
    result = mkdir(groups[i], 0755) < 0 && errno != EEXIST ? -errno : delegate(groups[i]);
  if (result < 0) {
    log_line("no control groups with memory and pids at " ROOT ": %s", strerror(-result));
    return result;
  }
  char text[32];
  uint64_t total = keyed("/proc", "meminfo", "MemTotal") << 10;
  uint64_t spared = total / 20 > AGENT_MEMORY ? total / 20 : AGENT_MEMORY;
  if (total > spared) {
    snprintf(text, sizeof text, "%llu", (unsigned long long)(total - spared));
    result = put(TOP, "memory.max", text);
  }
  uint64_t pids = number("/proc/sys/kernel", "pid_max", 32768), threads = number("/proc/sys/kernel", "threads-max", pids);
  uint64_t most = threads < pids ? threads : pids;
  snprintf(text, sizeof text, "%llu", (unsigned long long)(most > 2 * AGENT_PIDS ? most - AGENT_PIDS : most / 2));
  int second = put(TOP, "pids.max", text);
  result = result < 0 ? result : second;
  if (result < 0)
    log_line("cannot limit the guest's processes: %s", strerror(-result));
  return result;
}

static void path_of(char to[PATH], uint32_t handle, bool interpreter) {
  snprintf(to, PATH, TOP "/%s/%u", kind(interpreter), handle);
}

int group_open(uint32_t handle, bool interpreter) {
  if (!options.real)
    return -1;
  char path[PATH], procs[PATH + 32];
  path_of(path, handle, interpreter);
  if (mkdir(path, 0755) < 0 && errno != EEXIST)
    return -1;
  put(path, "memory.oom.group", "1");
  snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
  return open(procs, O_WRONLY | O_CLOEXEC);
}

int group_directory(uint32_t handle, bool interpreter) {
  if (!options.real)
    return -1;
  char path[PATH];
  path_of(path, handle, interpreter);
  return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Calls `visit` for each group below a path, deepest first, the path itself last. */
struct entry { /* linux_dirent64 */
  uint64_t ino;
  int64_t off;
  uint16_t length;
  uint8_t type;
  char name[];
};

static void walk(char path[PATH], int depth, void (*visit)(const char *path, void *context), void *context) {
  _Alignas(8) char buffer[2048];
  int fd = depth < DEEPEST ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  long n;
  size_t length = strlen(path);
  while (fd >= 0 && (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < n;) {
      struct entry *e = (struct entry *)(void *)(buffer + at);
      at += e->length;
      if (e->type != 4 /* DT_DIR */ || e->name[0] == '.' || length + strlen(e->name) + 2 > PATH)
        continue;
      path[length] = '/';
      strcpy(path + length + 1, e->name);
      walk(path, depth + 1, visit, context);
      path[length] = 0;
    }
  }
  if (fd >= 0)
    close(fd);
  visit(path, context);
}

struct signalling {
  int signal, reached;
};

static void signal_each(const char *path, void *context) {
  struct signalling *s = context;
  char name[PATH + 32], text[4096];
  snprintf(name, sizeof name, "%s/cgroup.procs", path);
  int fd = open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  ssize_t n;
  pid_t pid = 0;
  while ((n = read(fd, text, sizeof text)) > 0) { /* a number may lie across two reads */
    for (ssize_t i = 0; i < n; i++) {
      if (text[i] >= '0' && text[i] <= '9') {
        pid = pid * 10 + (text[i] - '0');
        continue;
      }
      if (pid > 1 && kill(pid, s->signal) == 0)
        s->reached++;
      pid = 0;
    }
  }
  close(fd);
}

int group_signal(uint32_t handle, bool interpreter, int signal) {
  if (!options.real)
    return 0;
  char path[PATH];
  struct signalling s = { signal, 0 };
  path_of(path, handle, interpreter);
  walk(path, 0, signal_each, &s);
  return s.reached;
}

void group_kill(uint32_t handle, bool interpreter) {
  if (!options.real)
    return;
  char path[PATH];
  path_of(path, handle, interpreter);
  if (put(path, "cgroup.kill", "1") == 0)
    return;
  /* Before Linux 5.14. Forks may outrun one pass. */
  for (int pass = 0; pass < 16 && group_signal(handle, interpreter, SIGKILL) > 0; pass++)
    ;
}

static bool leftovers; /* a group was still in use when its process was done with */

static void remove_one(const char *path, void *context) {
  (void)context;
  if (rmdir(path) < 0 && errno == EBUSY)
    leftovers = true;
}

void group_close(uint32_t handle, bool interpreter) {
  if (!options.real)
    return;
  char path[PATH];
  path_of(path, handle, interpreter);
  walk(path, 0, remove_one, NULL);
}

/* Removes groups of ended processes that are empty by now. Those of running processes stay: their counters are still wanted. */
static void sweep(struct timer *t) {
  (void)t;
  leftovers = false;
  for (int i = 0; i < 2; i++) {
    _Alignas(8) char buffer[2048];
    char path[PATH];
    snprintf(path, sizeof path, TOP "/%s", kind(i));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
      for (long at = 0; at < n;) {
        struct entry *e = (struct entry *)(void *)(buffer + at);
        at += e->length;
        uint32_t handle = (uint32_t)strtoul(e->name, NULL, 10);
        if (e->type == 4 && handle > 0 && !process_runs(handle))
          group_close(handle, i);
      }
    }
    if (fd >= 0)
      close(fd);
  }
}

static struct timer sweeping = { .fire = sweep };

void group_orphan_reaped(void) {
  if (leftovers && sweeping.at_ms == 0)
    timer_set(&sweeping, 200);
}

bool group_oom_killed(uint32_t handle, bool interpreter) {
  if (!options.real)
    return false;
  char path[PATH];
  path_of(path, handle, interpreter);
  return keyed(path, "memory.events", "oom_kill") > 0;
}

static int freezers[2] = { -1, -1 }; /* open since the first use: a fork's hello thaws */

static void freeze_one(bool interpreter, bool frozen) {
  char path[PATH], file[PATH + 32], text[256];
  int *freezer = &freezers[interpreter];
  snprintf(path, sizeof path, TOP "/%s", kind(interpreter));
  snprintf(file, sizeof file, "%s/cgroup.freeze", path);
  if (*freezer < 0)
    *freezer = open(file, O_WRONLY | O_CLOEXEC);
  if (*freezer < 0 || pwrite(*freezer, frozen ? "1" : "0", 1, 0) < 0 || !frozen)
    return; /* what is thawed runs when it gets its turn: nothing to wait for */
  snprintf(file, sizeof file, "%s/cgroup.events", path);
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  uint64_t until = now_ms() + FREEZE_MS;
  for (;;) {
    ssize_t n = pread(fd, text, sizeof text - 1, 0); /* reading also arms the next POLLPRI */
    text[n > 0 ? n : 0] = 0;
    bool empty = strstr(text, "populated 0") != NULL, is = strstr(text, "frozen 1") != NULL;
    uint64_t now = now_ms();
    if (n <= 0 || is || empty)
      break;
    if (now >= until) {
      log_line("%s is not frozen after %d ms", path, FREEZE_MS);
      break;
    }
    struct pollfd changed = { .fd = fd, .events = POLLPRI };
    poll(&changed, 1, (int)(until - now));
  }
  close(fd);
}

void group_freeze(bool interpreters, bool user, bool frozen) {
  if (!options.real)
    return;
  if (interpreters)
    freeze_one(true, frozen);
  if (user)
    freeze_one(false, frozen);
}

void group_memory(uint64_t *limit, uint64_t *used, uint64_t *oom_kills) {
  *limit = *used = *oom_kills = 0;
  if (!options.real)
    return;
  *limit = number(TOP, "memory.max", 0);
  *used = number(TOP, "memory.current", 0);
  *oom_kills = keyed(TOP, "memory.events", "oom_kill");
}
