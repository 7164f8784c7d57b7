/* METRICS: one record from /proc, the root file system and the user's cgroup. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define TICK_US 10000u /* USER_HZ is 100 on every machine this runs on */

/* In the order of metricsOrder (agent.ts). */
enum {
  UPTIME, WALL_CLOCK, CPUS, USER, SYSTEM, IDLE, IOWAIT, STEAL, LOAD1, LOAD5, LOAD15,
  MEM_TOTAL, MEM_FREE, MEM_AVAILABLE, MEM_CACHED, USER_LIMIT, USER_USED,
  DISK_TOTAL, DISK_FREE, DISK_AVAILABLE, PROCESSES, OOM_KILLS, ZERO, METRICS
};

/* What fits of a file of /proc, as a string. Empty when it cannot be read. */
static const char *text_of(const char *path, char *to, size_t capacity) {
  size_t size = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n;
    while (size + 1 < capacity && (n = read(fd, to + size, capacity - 1 - size)) != 0) {
      if (n > 0) size += (size_t)n;
      else if (errno != EINTR) break;
    }
    close(fd);
  }
  to[size] = 0;
  return to;
}

static const char *line_after(const char *text) {
  const char *end = strchr(text, '\n');
  return end ? end + 1 : NULL;
}

static void read_cpu(uint64_t *m, char *buffer, size_t capacity) {
  /* cpu user nice system idle iowait irq softirq steal ... ; the lines of each CPU follow, then others */
  for (const char *line = text_of("/proc/stat", buffer, capacity); line && strncmp(line, "cpu", 3) == 0; line = line_after(line)) {
    if (line[3] != ' ') {
      m[CPUS]++;
      continue;
    }
    uint64_t ticks[8] = {0};
    char *at = (char *)line + 4;
    for (int i = 0; i < 8; i++)
      ticks[i] = strtoull(at, &at, 10);
    m[USER] = (ticks[0] + ticks[1]) * TICK_US;
    m[SYSTEM] = (ticks[2] + ticks[5] + ticks[6]) * TICK_US;
    m[IDLE] = ticks[3] * TICK_US;
    m[IOWAIT] = ticks[4] * TICK_US;
    m[STEAL] = ticks[7] * TICK_US;
  }
}

static void read_load(uint64_t *m, char *buffer, size_t capacity) {
  char *at = (char *)text_of("/proc/loadavg", buffer, capacity);
  for (int i = 0; i < 3; i++) { /* "0.52": two digits, always */
    uint64_t whole = strtoull(at, &at, 10);
    uint64_t hundredths = *at == '.' ? strtoull(at + 1, &at, 10) : 0;
    m[LOAD1 + i] = whole * 1000 + hundredths * 10;
  }
}

static void read_memory(uint64_t *m, char *buffer, size_t capacity) {
  static const struct {
    const char *name;
    int to;
  } wanted[] = {{"MemTotal:", MEM_TOTAL}, {"MemFree:", MEM_FREE}, {"MemAvailable:", MEM_AVAILABLE}, {"Cached:", MEM_CACHED}};
  for (const char *line = text_of("/proc/meminfo", buffer, capacity); line && *line; line = line_after(line))
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
      if (strncmp(line, wanted[i].name, strlen(wanted[i].name)) == 0)
        m[wanted[i].to] = strtoull(line + strlen(wanted[i].name), NULL, 10) * 1024;
}

static uint64_t clock_ns(clockid_t clock) {
  struct timespec t = {0};
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void verb_metrics(struct slot *s, const struct fields *f) {
  static char buffer[32768];
  uint64_t m[METRICS] = {0};
  (void)f;
  m[UPTIME] = clock_ns(CLOCK_BOOTTIME);
  m[WALL_CLOCK] = clock_ns(CLOCK_REALTIME);
  read_cpu(m, buffer, sizeof buffer);
  read_load(m, buffer, sizeof buffer);
  read_memory(m, buffer, sizeof buffer);
  struct statvfs disk;
  if (statvfs(options.root, &disk) == 0) {
    m[DISK_TOTAL] = (uint64_t)disk.f_blocks * disk.f_frsize;
    m[DISK_FREE] = (uint64_t)disk.f_bfree * disk.f_frsize;
    m[DISK_AVAILABLE] = (uint64_t)disk.f_bavail * disk.f_frsize;
  }
  group_memory(&m[USER_LIMIT], &m[USER_USED], &m[OOM_KILLS]);
  m[PROCESSES] = (uint64_t)process_count();

  uint8_t record[8 + 8 * METRICS] = {F_METRICS, 0, 0, 0, 8 * METRICS};
  for (int i = 0; i < METRICS; i++)
    for (int b = 0; b < 8; b++)
      record[8 + 8 * i + b] = (uint8_t)(m[i] >> (8 * b));
  slot_open(s, false, 1);
  slot_reply(s, NULL);
  slot_write(s, 1, record, sizeof record);
  slot_end(s, 1);
  slot_done(s, ST_OK, 0, NULL);
}
