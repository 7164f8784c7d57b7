/* The socket by which a VMM is told what to do, in one of two languages. */
#pragma once
#include "shim.h"

struct monitor {
  int fd; /* -1: closed */
  uint32_t speaks; /* SPEAKS_... */
  char text[65536]; /* what has come and is not dropped yet */
  size_t length, taken; /* of them, taken as the last answer */
  unsigned owed; /* commands whose answers have not come */
};
/* An answer. Its text lies in the monitor until the next one is waited for. */
struct answer {
  bool refused;
  uint32_t status; /* of HTTP; else 0 */
  const char *text; /* what HTTP has after its header, else the line */
  size_t length;
};
/* Connects to a socket of the run directory, up to where commands are taken. */
int monitor_open(struct monitor *m, const char *socket, int64_t due_us, struct fault *f);
int monitor_send(struct monitor *m, const char *command, struct fault *f);
/* Waits for the answer to what was sent; what the VMM tells unasked is passed over. A refusal is an answer. */
int monitor_answer(struct monitor *m, struct answer *a, int64_t due_us, struct fault *f);
/* Sends, and waits; a refusal is a failure. */
int monitor_command(struct monitor *m, const char *command, int64_t due_us, struct fault *f);
void monitor_close(struct monitor *m);
