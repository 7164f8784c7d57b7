/*
 * The clocks of a guest, watched without a pause: for each line of its input it answers with what they say, and with what it has seen so far.
 *
 *   -> look     at once
 *   -> sleep    after a sleep of 10 s
 *   <- WALL MONOTONIC STEP BACK SLEPT
 *
 * All in microseconds: the two clocks; the most by which the wall clock was ever moved against the monotonic one; the most by which the monotonic
 * one ever went back; how long the last sleep took, by the monotonic clock.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 50
/* Two looks at the monotonic clock that are further apart say nothing about the wall clock between them. */
#define CLOSE_US 1000

static int64_t read_clock(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t last, back, least = INT64_MAX, most = INT64_MIN, slept;

static int64_t look(int64_t *wall) {
  int64_t before, after;
  do {
    before = read_clock(CLOCK_MONOTONIC);
    *wall = read_clock(CLOCK_REALTIME);
    after = read_clock(CLOCK_MONOTONIC);
    if (last - before > back) back = last - before;
    if (before - after > back) back = before - after;
    last = after;
  } while (after - before > CLOSE_US);
  int64_t ahead = *wall - before;
  if (ahead < least) least = ahead;
  if (ahead > most) most = ahead;
  return before;
}

int main(void) {
  int64_t wall, now;
  char line[16];
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (;;) {
    struct pollfd input = {0, POLLIN, 0};
    int n = poll(&input, 1, LOOK_MS);
    now = look(&wall);
    if (n <= 0) continue;
    ssize_t size = read(0, line, sizeof line - 1);
    if (size <= 0) return 0;
    line[size] = 0;
    if (strcmp(line, "sleep\n") == 0) {
      struct timespec ten = {10, 0};
      int64_t from = read_clock(CLOCK_MONOTONIC);
      nanosleep(&ten, NULL);
      now = look(&wall);
      slept = now - from;
    }
    printf("%lld %lld %lld %lld %lld\n", (long long)wall, (long long)now, (long long)(most - least), (long long)back, (long long)slept);
  }
}
