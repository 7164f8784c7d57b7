/* A wall clock that a test can set: preloaded into the daemon. What it adds, in seconds, stands in a file that is mapped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *added;

__attribute__((constructor)) static void open_offset(void) {
  const char *path = getenv("FORKD_TEST_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *added, PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) added = at;
  if (fd >= 0) close(fd);
}

static int64_t seconds(void) { return added ? *added : 0; }

int clock_gettime(clockid_t id, struct timespec *into) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, into);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) into->tv_sec += seconds();
  return result;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
  int result = real(into, zone);
  if (result == 0) into->tv_sec += seconds();
  return result;
}

time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
