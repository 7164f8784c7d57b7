/* What processes read: a pipe, or the terminal's side of a pty. */
#include "process.h"
#include <errno.h>
#include <sys/epoll.h>
#include <termios.h>
#include <unistd.h>

static void watch_input(struct input *i, bool on) {
  if (i->watching == on || i->watched.fd < 0)
    return;
  if (!on)
    loop_remove(&i->watched);
  else if (loop_add(&i->watched, EPOLLOUT) < 0)
    return;
  i->watching = on;
}

void input_close(struct input *i) {
  if (i->watched.fd >= 0) {
    watch_input(i, false);
    close(i->watched.fd);
    i->watched.fd = -1;
  }
  i->eof_bytes = 0;
}

static void discard_input(struct slot *s) {
  const uint8_t *bytes;
  for (size_t n; (n = slot_input(s, &bytes)) > 0;)
    slot_consume(s, n);
}

/* A terminal's end of file is a character, which in the middle of a line only hands over the line: then it takes two. */
static void begin_eof(struct input *i) {
  struct termios t;
  if (!i->process->pty) {
    input_close(i);
    return;
  }
  bool lines = tcgetattr(i->watched.fd, &t) == 0 && t.c_lflag & ICANON;
  i->eof_bytes = lines && i->mid_line ? 2 : 1;
  i->mid_line = false;
}

/* Returns false when it has to be tried again once there is room. */
static bool put_input(struct input *i, const uint8_t *bytes, size_t length, size_t *done) {
  ssize_t n = write(i->watched.fd, bytes, length);
  *done = n > 0 ? (size_t)n : 0;
  if (n > 0 || (n < 0 && errno == EINTR))
    return true;
  if (n == 0 || errno == EAGAIN)
    return false;
  input_close(i); /* nobody reads it any more: the rest goes nowhere, and that is no error of the writer */
  return true;
}

static void feed(struct input *i) {
  struct reader *r = i->reader;
  bool eof = r && slot_input_ended(r->slot);
  const uint8_t *bytes;
  size_t n, done;
  if (!r)
    return;
  while (i->watched.fd >= 0 && (n = slot_input(r->slot, &bytes)) > 0) {
    if (!put_input(i, bytes, n, &done)) {
      watch_input(i, true);
      return;
    }
    if (done == 0)
      continue;
    i->mid_line = bytes[done - 1] != '\n' && bytes[done - 1] != '\r';
    slot_consume(r->slot, done);
    eof = slot_input_ended(r->slot);
  }
  if (i->watched.fd < 0)
    discard_input(r->slot);
  if (eof) {
    i->reader = NULL; /* once: what another reader may send later has its own end */
    if (i->watched.fd >= 0)
      begin_eof(i);
  }
}

static bool put_eof(struct input *i) {
  static const uint8_t eof = 4;
  size_t done;
  while (i->watched.fd >= 0 && i->eof_bytes > 0) {
    if (!put_input(i, &eof, 1, &done)) {
      watch_input(i, true);
      return false;
    }
    i->eof_bytes -= (uint8_t)(i->eof_bytes ? done : 0);
  }
  return true;
}

/* EOF characters that are due come before what a later reader sends, and after all input before them. */
static void pump_input(struct input *i) {
  const uint8_t *bytes;
  if (!put_eof(i))
    return;
  feed(i);
  if (!put_eof(i) || (i->reader && i->watched.fd >= 0 && slot_input(i->reader->slot, &bytes) > 0))
    return;
  watch_input(i, false);
}

static void input_ready(struct watched *w, uint32_t events) {
  struct input *i = (struct input *)(void *)w;
  (void)events;
  if (i->watched.fd >= 0)
    pump_input(i);
}

void input_start(struct input *i, int fd) {
  i->watched.fd = fd;
  i->watched.ready = input_ready;
}

void input_take(struct process *p, struct reader *r) {
  struct reader *before = p->input.reader;
  p->input.reader = r;
  if (before)
    discard_input(before->slot);
  watch_input(&p->input, false);
  pump_input(&p->input);
}

void input_news(struct reader *r) {
  if (r->process->input.reader == r)
    pump_input(&r->process->input);
  else
    discard_input(r->slot);
}

void input_leave(struct process *p, const struct reader *r) {
  if (p->input.reader != r)
    return;
  p->input.reader = NULL;
  if (p->input.eof_bytes == 0)
    watch_input(&p->input, false);
}
