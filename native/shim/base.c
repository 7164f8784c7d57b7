/* What every part uses: faults and the clock. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "shim.h"

int fail(struct fault *f, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  f->code = code ? code : EIO;
  vsnprintf(f->text, sizeof f->text, format, args);
  va_end(args);
  return -1;
}

int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
