/*
 * The pause of a branch, as one piece: commands of the VMM's monitor before the freeze and after it, each sent as soon as the one before is
 * answered. No daemon has to be waited for in it, and whoever dies or is late, the VMM is resumed by the thread that has paused it.
 */
#define _GNU_SOURCE
#include "pause.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* What is sent when the pause is over gets so long, whatever the time of the pause was. */
#define RESUME_US 5000000

/* Waits for a whole line at the start of the text. Its length, or -1. */
static int wait_line(struct monitor *m, int64_t due, struct fault *f) {
  for (;;) {
    char *newline = memchr(m->text, '\n', m->length);
    if (newline) return (int)(newline - m->text);
    if (m->length == sizeof m->text) m->length = 0; /* no line of ours is so long */
    int64_t left = due - now_us();
    struct pollfd p = {m->fd, POLLIN, 0};
    int n = left > 0 ? poll(&p, 1, (int)(left / 1000) + 1) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(f, n < 0 ? errno : ETIMEDOUT, "the VMM's monitor did not answer in time");
    ssize_t got = recv(m->fd, m->text + m->length, sizeof m->text - m->length, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return fail(f, got < 0 ? errno : ESRCH, "the VMM's monitor has closed its connection");
    m->length += (size_t)got;
  }
}

static void drop_line(struct monitor *m, int length) {
  m->length -= (size_t)length + 1;
  memmove(m->text, m->text + length + 1, m->length);
}

static bool has(const char *line, int length, const char *word) { return memmem(line, (size_t)length, word, strlen(word)) != NULL; }

/* Waits for an answer; what the monitor tells unasked is passed over. */
static int answer(struct monitor *m, const char *command, int64_t due, struct fault *f) {
  for (;;) {
    int length = wait_line(m, due, f);
    if (length < 0) return -1;
    /* A quote inside of a text is escaped: none of these words can be part of one. */
    bool event = has(m->text, length, "\"event\":"), error = has(m->text, length, "\"error\":");
    if (error && !event) fail(f, EPROTO, "QEMU refused %.80s: %.*s", command, length > 160 ? 160 : length, m->text);
    drop_line(m, length);
    if (!event) return error ? -1 : 0;
  }
}

static int command(struct monitor *m, const char *line, int64_t due, struct fault *f) {
  size_t length = strlen(line);
  /* A command is far smaller than a socket's buffer. */
  if (send(m->fd, line, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length) return fail(f, errno, "send to the VMM's monitor: %s", strerror(errno));
  return answer(m, line, due, f);
}

int pause_open(struct pause *p, struct fault *f) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  int64_t due = now_us() + (int64_t)p->deadline_ms * 1000;
  p->monitor.length = 0;
  strncpy(to.sun_path, p->socket, sizeof to.sun_path - 1);
  p->monitor.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (p->monitor.fd < 0 || connect(p->monitor.fd, (struct sockaddr *)&to, sizeof to)) return fail(f, errno, "connect to %s: %s", p->socket, strerror(errno));
  /* Its greeting, which has neither word; then out of negotiation. */
  if (answer(&p->monitor, "a greeting", due, f)) return -1;
  return command(&p->monitor, "{\"execute\":\"qmp_capabilities\"}", due, f);
}

static int step(struct pause *p, const char *line, int64_t due, struct fault *f) {
  int64_t began = now_us();
  int result = command(&p->monitor, line, due, f);
  p->took_us[p->steps++] = (uint32_t)(now_us() - began);
  return result;
}

int pause_around(struct pause *p, int (*freeze)(void), struct fault *f) {
  int64_t began = now_us(), due = p->due_us = began + (int64_t)p->deadline_ms * 1000;
  int result = 0;
  for (int i = 0; i < p->before && result == 0; i++) result = step(p, p->lines[i], due, f);
  if (result == 0) {
    int64_t from = now_us();
    result = freeze();
    p->took_us[p->steps++] = (uint32_t)(now_us() - from);
  }
  /* Whatever failed: the VMM goes on. The first failure is the one that is told. */
  for (int i = p->before; i < p->before + p->after; i++) {
    struct fault later;
    if (step(p, p->lines[i], now_us() + RESUME_US, result ? &later : f)) result = -1;
  }
  close(p->monitor.fd); /* it takes one connection at a time */
  p->monitor.fd = -1;
  return result;
}

void pause_free(struct pause *p) {
  if (p->socket && p->monitor.fd >= 0) close(p->monitor.fd);
  for (int i = 0; i < p->before + p->after; i++) free(p->lines[i]);
  free(p->socket);
  memset(p, 0, sizeof *p);
}
