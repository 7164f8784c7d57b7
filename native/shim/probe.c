/* What this process may do to a VMM, tried on a throw-away child that a filter kills where QEMU's would: never on a VMM. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inject.h"

#define NOBODY 65534
#define TIMEOUT_MS 500

int forbid_clone_and_mmap(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* The child: another user where possible, as a VMM is; says so, then waits to be borrowed. */
static void be_target(int ready, bool filtered, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char changed = setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
  prctl(PR_SET_DUMPABLE, 1); /* as after the exec of a VMM */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent || (filtered && forbid_clone_and_mmap())) _exit(1);
  if (write(ready, &changed, 1) != 1) _exit(1);
  for (;;) poll(NULL, 0, -1);
}

static int try_calls(struct inject *in, void *arg) {
  bool clones = *(bool *)arg;
  int64_t at, done;
  if (inject_call(in, &at, SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX, 0)) return -1;
  if (at < 0 && at > -4096) return fail(in->fault, (int)-at, "injected mmap");
  if (clones) {
    pid_t clone;
    if (inject_clone(in, &clone)) return -1;
    kill(clone, SIGKILL);
    waitpid(clone, NULL, __WALL);
  }
  return inject_call(in, &done, SYS_munmap, (uint64_t)at, 4096, 0, 0, 0, 0);
}

/* True when the calls went through and the child lives on afterwards. */
static bool try_on_child(bool filtered, bool *changed_user, struct fault *f) {
  int ready[2], result = -1;
  if (pipe2(ready, O_CLOEXEC)) return fail(f, errno, "pipe"), false;
  pid_t parent = getpid(), child = fork();
  if (child == 0) be_target(ready[1], filtered, parent);
  close(ready[1]);
  char changed = 0;
  if (child < 0) fail(f, errno, "fork");
  else if (read(ready[0], &changed, 1) != 1) fail(f, ENOTSUP, "a child could not install a seccomp filter");
  else {
    result = inject_run(child, filtered ? INJECT_SUSPEND_FILTER : 0, TIMEOUT_MS, try_calls, &filtered, f);
    int status;
    if (result == 0 && waitpid(child, &status, WNOHANG) != 0) result = fail(f, EIO, "the child did not survive an injection");
  }
  close(ready[0]);
  *changed_user = changed;
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  return result == 0;
}

void probe_abilities(struct abilities *a) {
  struct fault f = {0, ""};
  bool changes_user = false;
  memset(a, 0, sizeof *a);
  if (try_on_child(true, &changes_user, &f)) a->bits |= CAN_INJECTION | CAN_ATTACH;
  else {
    const char *missing = f.code == EPERM ? "PTRACE_O_SUSPEND_SECCOMP needs CAP_SYS_ADMIN in the first user namespace and a daemon without a seccomp filter: "
                          : f.code == EINVAL ? "PTRACE_O_SUSPEND_SECCOMP needs a kernel with CONFIG_CHECKPOINT_RESTORE: " : "";
    snprintf(a->reason, sizeof a->reason, "%s%.120s", missing, f.text);
    if (try_on_child(false, &changes_user, &f)) a->bits |= CAN_ATTACH;
  }
  if (changes_user) a->bits |= CAN_CHANGE_USER;
}
