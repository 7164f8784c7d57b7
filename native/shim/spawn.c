/* From a description to a running VMM, and to one that an earlier shim had started. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

/* The VMM's listening sockets have these numbers, here and there. */
#define FIRST_FD 10

struct vmm vmm = {.pidfd = -1};

/* A plain name: nothing that leads out of the run directory or needs quoting. */
static bool plain(const char *name) {
  size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
  return n > 0 && n < 100 && name[n] == 0 && name[0] != '.';
}

int listen_at(const char *name, struct fault *f) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (!plain(name)) return fail(f, EINVAL, "\"%.100s\" is no name for a socket: letters, digits, dot, dash and underscore, at most 99", name);
  strncpy(at.sun_path, name, sizeof at.sun_path - 1);
  unlink(name); /* the directory is ours, by its lock: what lies here is stale */
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || chmod(name, 0600) || listen(fd, 64)) {
    fail(f, errno, "socket %s: %s", name, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

void remove_sockets(void) {
  for (int i = 0; i < vmm.socket_count; i++) unlink(vmm.sockets[i]);
  unlink("shim.sock");
}

static int make_sockets(struct fault *f) {
  for (int i = 0; i < vmm.socket_count; i++) {
    int fd = listen_at(vmm.sockets[i], f);
    if (fd < 0) return -1;
    if (dup3(fd, FIRST_FD + i, O_CLOEXEC) < 0) return fail(f, errno, "dup: %s", strerror(errno));
    close(fd);
  }
  return 0;
}

static void close_sockets(void) {
  for (int i = 0; i < vmm.socket_count; i++) close(FIRST_FD + i);
}

/* `@fd:NAME@` becomes a number, wherever in an argument it stands. */
static int place_numbers(char **arg, struct fault *f) {
  char *at;
  while ((at = strstr(*arg, "@fd:"))) {
    char *end = strchr(at + 4, '@'), *placed;
    int found = -1;
    for (int i = 0; end && i < vmm.socket_count; i++)
      if (strlen(vmm.sockets[i]) == (size_t)(end - at - 4) && !strncmp(vmm.sockets[i], at + 4, (size_t)(end - at - 4))) found = FIRST_FD + i;
    if (found < 0) return fail(f, EINVAL, "argument \"%.150s\" names no socket of this VMM", *arg);
    if (asprintf(&placed, "%.*s%d%s", (int)(at - *arg), *arg, found, end + 1) < 0) return fail(f, ENOMEM, "no memory");
    free(*arg);
    *arg = placed;
  }
  return 0;
}

/* What the child tells before it gives up. */
struct stillborn {
  int error;
  char step[60];
};

static void give_up(int report, const char *step) {
  struct stillborn s = {errno, ""};
  strncpy(s.step, step, sizeof s.step - 1);
  if (write(report, &s, sizeof s) < 0) _exit(126);
  _exit(127);
}

static void normal_signals(void) {
  for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static void change_user(const struct start *s, int report) {
  if (!(s->flags & START_USER) || (s->uid == geteuid() && s->gid == getegid())) return;
  if (setgroups(0, NULL)) {
    if (errno == EPERM) return; /* not ours to change: the VMM runs as the shim, and abilities say so */
    give_up(report, "setgroups");
  }
  if (setresgid(s->gid, s->gid, s->gid)) give_up(report, "setgid");
  if (setresuid(s->uid, s->uid, s->uid)) give_up(report, "setuid");
}

/*
 * Mounts a device that the VMM's user may open over /dev/kvm, in a mount namespace of the VMM's own: QEMU opens that path, and the
 * host's node is not ours to open to others.
 */
static void own_kvm(const struct start *s, int report) {
  struct stat host;
  if (!(s->flags & START_OWN_KVM)) return;
  if (stat("/dev/kvm", &host)) give_up(report, "find /dev/kvm for");
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)) give_up(report, "make a mount namespace for the /dev/kvm of");
  /* On a file system of its own: that of the run directory may forbid devices. */
  if ((mkdir("kvm", 0700) && errno != EEXIST) || mount("kvm", "kvm", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=700"))
    give_up(report, "make room for a /dev/kvm for");
  if (mknod("kvm/kvm", S_IFCHR | 0600, host.st_rdev) || chown("kvm/kvm", s->uid, s->gid)) give_up(report, "make a /dev/kvm for");
  if (mount("kvm/kvm", "/dev/kvm", NULL, MS_BIND, NULL)) give_up(report, "mount a /dev/kvm for");
  if (umount2("kvm", MNT_DETACH) || rmdir("kvm")) give_up(report, "clear away the room of /dev/kvm for");
}

/* In the child: waits for `gate`, so that no VMM runs that shim.json does not tell of, then becomes the VMM. */
static void become_vmm(const struct start *s, int report, int gate) {
  static char *const environment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "MALLOC_ARENA_MAX=1", NULL};
  char byte;
  if (read(gate, &byte, 1) != 1) _exit(127); /* the shim has died */
  normal_signals();
  if (setsid() < 0) give_up(report, "setsid");
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0 && write(score, "0", 1) < 0) note("oom_score_adj of the VMM: %s", strerror(errno));
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  int log = open("vmm.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (null < 0) give_up(report, "open /dev/null");
  if (log < 0) give_up(report, "open vmm.log");
  if (dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) give_up(report, "dup");
  if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC)) give_up(report, "close_range");
  for (int i = 0; i < vmm.socket_count; i++)
    if (fcntl(FIRST_FD + i, F_SETFD, 0)) give_up(report, "hand over a socket");
  own_kvm(s, report);
  change_user(s, report);
  /* QEMU asks for huge pages for translated code: of a child's last one, and of each table beside it, most is never used. Refused, it costs memory only. */
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) note("huge pages stay on in the VMM: %s", strerror(errno));
  execve(s->argv[0], s->argv, environment);
  give_up(report, "execute");
}

/* Waits until the program has been executed (the pipe closes) or the child has told why not. */
static int await_exec(const struct start *s, int report, struct fault *f) {
  struct stillborn why;
  ssize_t n;
  do n = read(report, &why, sizeof why);
  while (n < 0 && errno == EINTR);
  if (n == 0) return 0;
  if (n != (ssize_t)sizeof why) return fail(f, EIO, "the VMM's process ended before its program began");
  return fail(f, why.error, "%s %.200s: %s", why.step, s->argv[0], strerror(why.error));
}

static int start_process(struct start *s, struct fault *f) {
  int report[2], gate[2];
  if (pipe2(report, O_CLOEXEC)) return fail(f, errno, "pipe: %s", strerror(errno));
  if (pipe2(gate, O_CLOEXEC)) {
    close(report[0]), close(report[1]);
    return fail(f, errno, "pipe: %s", strerror(errno));
  }
  int result = -1;
  pid_t pid = fork();
  if (pid == 0) {
    close(gate[1]);
    become_vmm(s, report[1], gate[0]);
  }
  close(report[1]), close(gate[0]);
  if (pid < 0) fail(f, errno, "fork: %s", strerror(errno));
  else {
    vmm.pid = pid;
    vmm.start_time = start_time_of(pid);
    vmm.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (vmm.pidfd < 0) fail(f, errno, "pidfd: %s", strerror(errno));
    else if (write_record(f) == 0) {
      if (write(gate[1], "", 1) != 1) fail(f, errno, "release the VMM");
      else result = await_exec(s, report[0], f);
    }
  }
  close(report[0]), close(gate[1]);
  if (result && pid > 0) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    unlink("shim.json");
  }
  return result;
}

int spawn_vmm(struct start *s, struct fault *f) {
  if (s->argc == 0 || s->argv[0][0] != '/') return fail(f, EINVAL, "the VMM's program \"%.200s\" is no absolute path", s->argc ? s->argv[0] : "");
  for (int i = 0; i < vmm.socket_count; i++)
    for (int j = 0; j < i; j++)
      if (!strcmp(vmm.sockets[i], vmm.sockets[j])) return fail(f, EINVAL, "socket %s is asked for twice", vmm.sockets[i]);
  int result = make_sockets(f);
  for (int i = 0; i < s->argc && result == 0; i++) result = place_numbers(&s->argv[i], f);
  if (result == 0) result = start_process(s, f);
  close_sockets(); /* they live in the VMM, and end with it */
  return result;
}

int adopt_vmm(pid_t pid, uint64_t start_time, struct fault *f) {
  vmm.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  /* The pidfd first, then the comparison: from here on the number cannot mean another process. */
  if (vmm.pidfd < 0 || start_time == 0 || start_time_of(pid) != start_time) return fail(f, ESRCH, "process %d is gone", pid);
  vmm.pid = pid, vmm.start_time = start_time, vmm.adopted = true;
  return write_record(f);
}
