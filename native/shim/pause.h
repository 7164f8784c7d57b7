/* The commands around a freeze. */
#pragma once
#include <stdatomic.h>

#include "monitor.h"

#define PAUSE_STEPS 16

struct pause_step {
  uint32_t kind; /* STEP_... */
  char *text, *to;
};
struct pause {
  char *socket; /* name in the run directory; NULL: somebody else pauses and resumes */
  char *freeze_at; /* the path at whose open the last command before the freeze is frozen; "": after all of them */
  struct pause_step list[PAUSE_STEPS]; /* those before the freeze, then those after it */
  int before, after;
  uint32_t deadline_ms;
  int64_t due_us; /* set when it begins */
  uint32_t took_us[PAUSE_STEPS + 1]; /* of each step, the freeze among them */
  int steps;
  atomic_bool *cancel;
  struct monitor monitor;
  struct answer answer; /* to the command that was frozen: in the monitor's text */
};
/* Reads what a request says of a pause; what was read is to be freed in any case. */
int pause_read(struct pause *p, struct reader *r, struct fault *f);
/* The command that is frozen at an open: the last one before the freeze. */
const char *pause_frozen_command(const struct pause *p);
/* Pauses, calls `freeze`, resumes: also when something has failed. */
int pause_around(struct pause *p, int (*freeze)(void), struct fault *f);
void pause_free(struct pause *p);
