/*
 * From fork to exec. Other threads of the agent may hold any lock at the fork, so nothing here allocates, prints or takes a lock, and ids are
 * changed by raw system calls: libc's setuid would wait for threads that do not exist here.
 */
#include "process.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STATUS = 3 }; /* the status pipe's place in the child */

static int status_fd;

static void copy(char *to, size_t capacity, const char *from) {
  size_t n = strnlen(from, capacity - 1);
  memcpy(to, from, n);
  to[n] = 0;
}

static _Noreturn void give_up(uint32_t step, int err, const char *subject, const char *interpreter) {
  struct complaint c;
  memset(&c, 0, sizeof c);
  c.step = step;
  c.err = err;
  copy(c.subject, sizeof c.subject, subject);
  copy(c.interpreter, sizeof c.interpreter, interpreter);
  while (write(status_fd, &c, sizeof c) < 0 && errno == EINTR)
    ;
  _exit(127);
}

/* 0, 1 and 2 may themselves be among the descriptors passed: lift all out of the way first. */
static int lifted(int fd) {
  int high = fcntl(fd, F_DUPFD_CLOEXEC, 16);
  if (high < 0)
    give_up(STEP_STDIO, errno, "descriptors", "");
  return high;
}

static void place_descriptors(const struct launch *l) {
  int from[3] = { l->in, l->out, l->err };
  status_fd = lifted(status_fd);
  int null = -1;
  for (int i = 0; i < 3; i++) {
    if (from[i] < 0 && null < 0) {
      null = open("/dev/null", O_RDWR | O_CLOEXEC);
      if (null < 0)
        give_up(STEP_STDIO, errno, "/dev/null", "");
    }
    from[i] = lifted(from[i] < 0 ? null : from[i]);
  }
  for (int i = 0; i < 3; i++)
    if (dup2(from[i], i) < 0)
      give_up(STEP_STDIO, errno, "descriptors", "");
  if (dup3(status_fd, STATUS, O_CLOEXEC) < 0)
    give_up(STEP_STDIO, errno, "descriptors", "");
  status_fd = STATUS;
  if (syscall(SYS_close_range, STATUS + 1, ~0U, 0) < 0) {
    struct rlimit most;
    int end = getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < 1 << 20 ? (int)most.rlim_cur : 1 << 20;
    for (int fd = STATUS + 1; fd < end; fd++)
      close(fd);
  }
}

static void limit(int resource, rlim_t soft, rlim_t hard) {
  struct rlimit value = { soft, hard };
  if (setrlimit(resource, &value) < 0) {
    value.rlim_max = soft;
    setrlimit(resource, &value);
  }
}

/* What the agent has set for itself must not be inherited. */
static void ordinary_limits(void) {
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (write(fd, "0", 1) < 0) { /* /proc may be hidden: no reason not to start */
    }
    close(fd);
  }
  struct sched_param plain = { 0 };
  syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &plain); /* musl's own refuses */
  setpriority(PRIO_PROCESS, 0, 0);
  limit(RLIMIT_CORE, 0, RLIM_INFINITY);
  limit(RLIMIT_STACK, 8 << 20, RLIM_INFINITY);
  limit(RLIMIT_NOFILE, 65536, 1 << 20);
  limit(RLIMIT_NPROC, RLIM_INFINITY, RLIM_INFINITY); /* the cgroup limits */
}

static void become(const struct user *u) {
  if (syscall(SYS_setgroups, u->group_count, u->groups) < 0)
    give_up(STEP_USER, errno, u->name, "");
  if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0)
    give_up(STEP_USER, errno, u->name, "");
  if (syscall(SYS_setresuid, u->uid, u->uid, u->uid) < 0)
    give_up(STEP_USER, errno, u->name, "");
}

static void enter_directory(const struct launch *l) {
  if (!l->cwd) {
    if (chdir(l->user->home) < 0 && chdir("/") < 0)
      give_up(STEP_CWD, errno, "/", "");
    return;
  }
  if (l->cwd[0] != '/' && chdir(l->user->home) < 0 && chdir("/") < 0)
    give_up(STEP_CWD, errno, "/", "");
  if (chdir(l->cwd) < 0)
    give_up(STEP_CWD, errno, l->cwd, "");
}

/* The program that a file asks to be run by: of its #! line, or the loader of an ELF file. */
static bool asked_interpreter(const char *path, char *to, size_t capacity) {
  char head[4096];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return false;
  ssize_t n = pread(fd, head, sizeof head - 1, 0);
  close(fd);
  if (n < 4)
    return false;
  head[n] = 0;
  if (head[0] == '#' && head[1] == '!') {
    char *name = head + 2 + strspn(head + 2, " \t");
    name[strcspn(name, " \t\r\n")] = 0;
    /* A line that ends in CR names a program that ends in CR: the kernel looks for that. */
    copy(to, capacity, name);
    return *name != 0;
  }
  Elf64_Ehdr elf;
  if ((size_t)n < sizeof elf || memcmp(head, ELFMAG, SELFMAG) != 0 || head[EI_CLASS] != ELFCLASS64)
    return false;
  memcpy(&elf, head, sizeof elf);
  for (size_t i = 0; i < elf.e_phnum; i++) {
    Elf64_Phdr part;
    size_t at = elf.e_phoff + i * sizeof part;
    if (at > (size_t)n || (size_t)n - at < sizeof part)
      return false;
    memcpy(&part, head + at, sizeof part);
    if (part.p_type != PT_INTERP)
      continue;
    if (part.p_offset >= (size_t)n)
      return false;
    copy(to, capacity, head + part.p_offset);
    return true;
  }
  return false;
}

/* The best account of why nothing was run, the most telling first. */
struct attempt {
  int err;
  bool needs_interpreter;
  char path[4096], interpreter[512];
};

static void try_exec(const struct launch *l, const char *path, struct attempt *best) {
  char interpreter[512];
  execve(path, l->argv, l->env);
  int err = errno;
  struct stat info;
  if (err == ENOENT && stat(path, &info) == 0 && asked_interpreter(path, interpreter, sizeof interpreter)) {
    if (!best->needs_interpreter) {
      best->needs_interpreter = true;
      best->err = err;
      copy(best->path, sizeof best->path, path);
      copy(best->interpreter, sizeof best->interpreter, interpreter);
    }
    return;
  }
  if (err == EACCES && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
    err = EISDIR;
  if (best->err == 0 || (best->err == ENOENT && !best->needs_interpreter)) {
    best->err = err;
    copy(best->path, sizeof best->path, path);
  }
}

static bool goes_on(int err) {
  return err == ENOENT || err == ENOTDIR || err == EACCES || err == EISDIR || err == ENAMETOOLONG || err == ELOOP || err == ESTALE || err == ENODEV ||
    err == ETIMEDOUT;
}

static _Noreturn void run(const struct launch *l) {
  static struct attempt best; /* of the child's own copy of memory */
  const char *name = l->argv[0];
  best.err = 0;
  best.needs_interpreter = false;
  if (strchr(name, '/')) {
    try_exec(l, name, &best);
  } else {
    static char path[8192];
    size_t length = strlen(name);
    for (const char *at = l->search;;) {
      size_t part = strcspn(at, ":");
      if (part + length + 2 <= sizeof path && part + length < 4096) {
        memcpy(path, at, part);
        size_t slash = part ? 1 : 0; /* an empty part is the working directory */
        path[part] = '/';
        memcpy(path + part + slash, name, length + 1);
        try_exec(l, path, &best);
        if (!goes_on(best.err))
          break;
      }
      if (!at[part])
        break;
      at += part + 1;
    }
    if (best.err == 0 || best.err == ENOTDIR || (best.err == ENOENT && !best.needs_interpreter)) {
      best.err = ENOENT;
      copy(best.path, sizeof best.path, name);
    }
  }
  if (best.needs_interpreter)
    give_up(STEP_INTERPRETER, best.err, best.path, best.interpreter);
  give_up(STEP_EXEC, best.err, best.path, "");
}

_Noreturn void child_run(const struct launch *l) {
  status_fd = l->status;
  setsid();
  if (l->procs >= 0 && write(l->procs, "0", 1) < 0)
    give_up(STEP_GROUP, errno, "cgroup", "");
  if (l->pty && ioctl(l->in, TIOCSCTTY, 0) < 0)
    give_up(STEP_TERMINAL, errno, "terminal", "");
  place_descriptors(l);
  umask(022);
  if (options.real)
    ordinary_limits();
  if (l->change_user)
    become(l->user);
  enter_directory(l);
  for (int number = 1; number < NSIG; number++)
    signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  run(l);
}
