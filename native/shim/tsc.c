/* Prints the rate of the time stamp counter in kHz, measured against CLOCK_MONOTONIC_RAW. */
#define _GNU_SOURCE
#include "tsc.h"
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

enum { SPAN_NS = 50 * 1000 * 1000, TRIES = 5 };

struct sample {
  uint64_t tsc;
  uint64_t ns;
  uint64_t width; /* how long the reading took, in ticks: the smaller, the truer */
};

static uint64_t raw_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The best of a few readings of both clocks: an interrupt between the two makes one wide. */
static struct sample take(void) {
  struct sample best = { .width = UINT64_MAX };
  for (int i = 0; i < TRIES; i++) {
    uint64_t before = __rdtsc();
    uint64_t ns = raw_ns();
    uint64_t after = __rdtsc();
    if (after - before < best.width)
      best = (struct sample){ .tsc = before + (after - before) / 2, .ns = ns, .width = after - before };
  }
  return best;
}

int tsc_main(void) {
  struct sample a = take();
  struct timespec span = { .tv_nsec = SPAN_NS };
  while (nanosleep(&span, &span) != 0) {
  }
  struct sample b = take();
  double khz = (double)(b.tsc - a.tsc) * 1e6 / (double)(b.ns - a.ns);
  return printf("%.3f\n", khz) < 0 || fflush(stdout) != 0;
}
