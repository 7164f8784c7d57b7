/* The commands around a freeze. */
#pragma once
#include "shim.h"

#define PAUSE_LINES 16

struct monitor {
  int fd;
  char text[65536]; /* what has come and is not dropped yet */
  size_t length;
};
struct pause {
  char *socket; /* name in the run directory; NULL: somebody else pauses and resumes */
  char *lines[PAUSE_LINES]; /* those before the freeze, then those after it */
  int before, after;
  uint32_t deadline_ms;
  int64_t due_us; /* set when it begins */
  uint32_t took_us[PAUSE_LINES + 1]; /* of each step, the freeze among them */
  int steps;
  struct monitor monitor;
};
/* Connects to the monitor: before the pause. */
int pause_open(struct pause *p, struct fault *f);
/* Pauses, calls `freeze`, resumes: also when something has failed. */
int pause_around(struct pause *p, int (*freeze)(void), struct fault *f);
void pause_free(struct pause *p);
