/* SPAWN: from a request to a forked child. What the child does then is in child.c, what becomes of it in process.c. */
#include "process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

/* linux/sched.h, which a libc without kernel headers lacks. */
#define INTO_CGROUP 0x200000000ULL
struct clone3_args {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* Descriptors of one start: ours are handed to the process on success, the child's are closed in any case. */
struct ends {
  int input, output[2], status;                      /* ours */
  int child_in, child_out, child_err, child_status;  /* the child's */
};

static void shut(int *fd) {
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void shut_child(struct ends *e) {
  if (e->child_err != e->child_out)
    shut(&e->child_err);
  if (e->child_in != e->child_out)
    shut(&e->child_in);
  shut(&e->child_out);
  shut(&e->child_status);
  e->child_in = e->child_err = -1;
}

static void shut_ours(struct ends *e) {
  shut(&e->input);
  shut(&e->output[0]);
  shut(&e->output[1]);
  shut(&e->status);
}

/* A pipe whose end of ours does not block. */
static bool open_pipe(int *ours, int *theirs, bool we_read) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) < 0)
    return false;
  *ours = fds[we_read ? 0 : 1];
  *theirs = fds[we_read ? 1 : 0];
  return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static bool open_terminal(struct ends *e, const struct winsize *size, uint32_t uid) {
  int unlocked = 0;
  e->output[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (e->output[0] < 0 || ioctl(e->output[0], TIOCSPTLCK, &unlocked) < 0)
    return false;
  e->child_in = e->child_out = e->child_err = ioctl(e->output[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  e->input = fcntl(e->output[0], F_DUPFD_CLOEXEC, 3); /* epoll takes a descriptor once: reading and writing are watched apart */
  if (e->child_in < 0 || e->input < 0 || ioctl(e->output[0], TIOCSWINSZ, size) < 0)
    return false;
  struct termios t;
  if (tcgetattr(e->child_in, &t) == 0) {
    t.c_iflag |= IUTF8; /* so that backspace rubs out a character, not a byte */
    tcsetattr(e->child_in, TCSANOW, &t);
  }
  if (uid != geteuid() && fchown(e->child_in, uid, (gid_t)-1) < 0)
    return false;
  return true;
}

static bool open_ends(struct ends *e, bool pty, bool stdin_pipe, const struct winsize *size, uint32_t uid) {
  if (!open_pipe(&e->status, &e->child_status, true))
    return false;
  if (pty)
    return open_terminal(e, size, uid);
  return open_pipe(&e->output[0], &e->child_out, true) && open_pipe(&e->output[1], &e->child_err, true) &&
    (!stdin_pipe || open_pipe(&e->input, &e->child_in, false));
}

/* Born in its group: moving a task later waits for the whole kernel, and what it forks meanwhile could escape. */
static pid_t fork_into(const struct process *p, struct launch *l) {
  sigset_t all, before;
  pid_t pid = -1;
  int directory = group_directory(p->handle, p->interpreter);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the agent runs in the child */
  if (directory >= 0) {
    struct clone3_args args = { .flags = INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)directory };
    pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
      child_run(l);
  }
  if (pid < 0 && (directory < 0 || errno == ENOSYS || errno == EINVAL || errno == E2BIG || errno == EOPNOTSUPP)) {
    l->procs = group_open(p->handle, p->interpreter);
    if (options.real && l->procs < 0)
      goto out;
    pid = fork();
    if (pid == 0)
      child_run(l);
  }
out:;
  int err = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  shut(&l->procs);
  shut(&directory);
  errno = err;
  return pid;
}

static void cannot_start(struct slot *s, int err) {
  if (err == EAGAIN)
    slot_fail(s, ST_BUSY, err, "the limit of processes is reached: end some first");
  else if (err == EMFILE || err == ENFILE || err == ENOSPC)
    slot_fail(s, ST_BUSY, err, "no descriptors or terminals are left for another process: end some first");
  else if (err == ENOMEM)
    slot_fail(s, ST_NO_MEMORY, err, "there is not enough memory to start a process");
  else
    slot_fail(s, status_of_errno(err), err, "cannot start a process: %s", strerror(err));
}

void spawn_failed(struct slot *s, const struct complaint *c) {
  int err = c->err, status = status_of_errno(err);
  const char *subject = c->subject;
  switch (c->step) {
  case STEP_CWD:
    slot_fail(s, status, err, "the working directory '%s' cannot be entered: %s", subject, strerror(err));
    return;
  case STEP_USER:
    slot_fail(s, ST_PERMISSION, err, "cannot become user '%s': %s", subject, strerror(err));
    return;
  case STEP_INTERPRETER:
    slot_fail(s, ST_NOT_FOUND, err, "'%s' is there, but not the program that is to run it: '%s'", subject, c->interpreter);
    return;
  case STEP_EXEC:
    break;
  default:
    slot_fail(s, status ? status : ST_IO, err, "cannot set up the process (%s): %s", subject, strerror(err));
    return;
  }
  switch (err) {
  case ENOENT:
    slot_fail(s, ST_NOT_FOUND, err, strchr(subject, '/') ? "the command '%s' does not exist" : "the command '%s' is not in any directory of PATH", subject);
    return;
  case EISDIR:
    slot_fail(s, ST_NOT_EXECUTABLE, err, "the command '%s' is a directory", subject);
    return;
  case EACCES:
  case EPERM:
    slot_fail(s, ST_NOT_EXECUTABLE, err, "the command '%s' is not executable for this user: see its mode and those of its directories", subject);
    return;
  case ENOEXEC:
    slot_fail(s, ST_NOT_EXECUTABLE, err, "the command '%s' is no program that this machine can run: a script needs a #! line", subject);
    return;
  case E2BIG:
    slot_fail(s, ST_TOO_LONG, err, "the arguments and environment are larger than Linux takes");
    return;
  case ETXTBSY:
    slot_fail(s, ST_BUSY, err, "the command '%s' is open for writing", subject);
    return;
  default:
    slot_fail(s, status ? status : ST_IO, err, "cannot run '%s': %s", subject, strerror(err));
  }
}

static bool find_user(struct slot *s, const struct fields *f, struct user *u, struct launch *l) {
  char spec[512];
  int status = fields_string(f, F_USER, spec, sizeof spec);
  struct field field;
  bool given = fields_find(f, F_USER, &field);
  if (!given)
    snprintf(spec, sizeof spec, "%u", (unsigned)geteuid());
  else if (status == ST_OK)
    status = user_find(spec, u);
  if (!given)
    status = user_find(spec, u);
  if (status == ST_NO_SUCH_USER) {
    slot_fail(s, status, 0, "there is no user (or group) '%s' in the guest's /etc/passwd (or /etc/group)", spec);
    return false;
  }
  if (status != ST_OK) {
    slot_fail(s, ST_INVALID, 0, "the user is not a name, a uid, or uid:gid");
    return false;
  }
  l->user = u;
  l->change_user = options.real || (given && (u->uid != geteuid() || u->gid != getegid()));
  return true;
}

static bool read_size(struct slot *s, const struct fields *f, bool *pty, struct winsize *size) {
  struct field field;
  uint32_t rows = fields_u32(f, F_ROWS, 0), cols = fields_u32(f, F_COLS, 0);
  *pty = fields_find(f, F_ROWS, &field) || fields_find(f, F_COLS, &field);
  if (*pty && (rows < 1 || rows > 65535 || cols < 1 || cols > 65535)) {
    slot_fail(s, ST_INVALID, 0, "a terminal has 1 to 65535 rows and columns, not %u x %u", rows, cols);
    return false;
  }
  *size = (struct winsize){ .ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols };
  return true;
}

/* What ps shows: as many whole arguments as fit, the last one cut. */
static void keep_command(struct process *p, char *const *argv) {
  for (; *argv && p->command_size < COMMAND_KEPT; argv++) {
    size_t left = COMMAND_KEPT - p->command_size - 1, length = strnlen(*argv, left);
    memcpy(p->command + p->command_size, *argv, length);
    p->command[p->command_size + length] = 0;
    p->command_size += length + 1;
  }
}

void verb_spawn(struct slot *s, const struct fields *f) {
  static struct user user;
  static char cwd[4096];
  struct launch l = { .in = -1, .out = -1, .err = -1, .status = -1, .procs = -1 };
  struct ends e = { -1, { -1, -1 }, -1, -1, -1, -1, -1 };
  struct field label = { 0 }, field;
  struct winsize size;
  uint32_t role = fields_u32(f, F_ROLE, 0);
  bool pty, stdin_pipe = fields_u32(f, F_STDIN, 0) == 1;

  signal(SIGPIPE, SIG_IGN); /* a process that closed its stdin must not end the agent */
  if (role > 1) {
    slot_fail(s, ST_INVALID, 0, "role %u is neither user (0) nor interpreter (1)", role);
    return;
  }
  if (!fields_find(f, F_LABEL, &label))
    label.length = 0; /* a field that was not found is not left blank */
  if (label.length >= LABEL_KEPT) {
    slot_fail(s, ST_TOO_LONG, 0, "the label has %u bytes; at most %d are kept", label.length, LABEL_KEPT - 1);
    return;
  }
  if (!read_size(s, f, &pty, &size) || !find_user(s, f, &user, &l))
    return;
  if (fields_find(f, F_CWD, &field)) {
    int status = fields_string(f, F_CWD, cwd, sizeof cwd);
    if (status != ST_OK || !*cwd) {
      slot_fail(s, status == ST_OK ? ST_INVALID : status, 0, "the working directory is not a path of 1 to %zu bytes", sizeof cwd - 1);
      return;
    }
    l.cwd = cwd;
  } else if (!options.real) {
    l.cwd = options.root;
  }
  if (!environment_build(s, f, &user, pty, &l))
    return;

  struct process *p = process_new(pty);
  if (!p) {
    if (errno == ENOMEM)
      cannot_start(s, ENOMEM);
    else
      slot_fail(s, ST_BUSY, 0, "%d processes run or are followed, which is all that the agent keeps: end or release some", MAX_PROCESSES);
    return;
  }
  p->interpreter = role == 1;
  if (label.length)
    memcpy(p->label, label.bytes, label.length);
  keep_command(p, l.argv);

  int procs = group_open(p->handle, p->interpreter), err = 0;
  if (options.real && procs < 0)
    err = errno;
  shut(&procs);
  pid_t pid = -1;
  if (!err && !open_ends(&e, pty, stdin_pipe, &size, user.uid))
    err = errno;
  if (!err) {
    l.pty = pty;
    l.in = e.child_in;
    l.out = e.child_out;
    l.err = e.child_err;
    l.status = e.child_status;
    pid = fork_into(p, &l);
    err = pid < 0 ? errno : 0;
  }
  shut_child(&e);
  if (err) {
    shut_ours(&e);
    group_close(p->handle, p->interpreter);
    process_free(p);
    cannot_start(s, err);
    return;
  }
  p->output[0].watched.fd = e.output[0];
  p->output[1].watched.fd = e.output[1];
  if (e.input >= 0)
    input_start(&p->input, e.input);
  p->starter = reader_new(s, p);
  process_forked(p, pid, e.status, fields_u32(f, F_TIMEOUT, 0));
}
