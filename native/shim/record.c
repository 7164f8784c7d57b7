/* What the shim leaves in the run directory: shim.json, and vmm.log within bounds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

#define LOG "vmm.log"
#define LOG_MOST (4 << 20)
#define LOG_KEPT (64 << 10)

uint64_t start_time_of(pid_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  /* The program's name may hold anything; fields count from its closing bracket, where field 3 follows. */
  char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

static void read_boot_id(char *into, size_t room) {
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, into, room - 1);
  if (fd >= 0) close(fd);
  into[n > 0 ? n : 0] = 0;
  into[strcspn(into, "\n")] = 0;
}

/* Not synced: after a crash of the host no process is left that it could tell of. */
int write_record(struct fault *f) {
  char boot[64];
  struct stat ns = {0};
  read_boot_id(boot, sizeof boot);
  stat("/proc/self/ns/pid", &ns);
  /* The VMM may make files here too: ours is always a new one, never what a name of the VMM's leads to. */
  unlink("shim.json.tmp");
  int fd = open("shim.json.tmp", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
  if (!file) {
    fail(f, errno, "make shim.json.tmp: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  fprintf(file, "{\"version\":%d,\"pid\":%d,\"startTime\":\"%llu\",\"vmmPid\":%d,\"vmmStartTime\":\"%llu\",\"bootId\":\"%s\",\"pidNamespace\":\"%llu\",\"sockets\":[",
          SHIM_VERSION, getpid(), (unsigned long long)start_time_of(getpid()), vmm.pid, (unsigned long long)vmm.start_time, boot, (unsigned long long)ns.st_ino);
  for (int i = 0; i < vmm.socket_count; i++) fprintf(file, "%s\"%s\"", i ? "," : "", vmm.sockets[i]);
  fprintf(file, "],\"abilities\":%u,\"flags\":%u", abilities.bits, vmm.flags & START_MAPS_ALLOWED);
  if (vmm.ended) fprintf(file, ",\"exitKind\":%u,\"exitValue\":%u", vmm.exit_kind, vmm.exit_value);
  fprintf(file, "}\n");
  int bad = ferror(file);
  if (fclose(file) || bad || rename("shim.json.tmp", "shim.json")) {
    fail(f, errno, "write shim.json: %s", strerror(errno));
    unlink("shim.json.tmp");
    return -1;
  }
  return 0;
}

size_t last_words(char *into, size_t room) {
  int fd = open(LOG, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return 0;
  off_t size = lseek(fd, 0, SEEK_END), from = size > (off_t)room ? size - (off_t)room : 0;
  ssize_t n = pread(fd, into, room, from);
  close(fd);
  return n > 0 ? (size_t)n : 0;
}

int log_watch(void) {
  int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (fd >= 0 && inotify_add_watch(fd, LOG, IN_MODIFY) < 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

void log_trim(int watch) {
  static char kept[LOG_KEPT];
  char drop[4096];
  struct stat st;
  while (read(watch, drop, sizeof drop) > 0) continue;
  if (stat(LOG, &st) || st.st_size <= LOG_MOST) return;
  size_t n = last_words(kept, sizeof kept);
  int fd = open(LOG, O_WRONLY | O_APPEND | O_TRUNC | O_CLOEXEC | O_NOFOLLOW); /* the VMM appends: it goes on behind what is kept */
  if (fd < 0) return;
  if (write(fd, kept, n) < 0) note("trim " LOG ": %s", strerror(errno));
  close(fd);
}
