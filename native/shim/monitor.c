/*
 * Two languages of VMMs: QMP, where every answer is a line and much is told unasked; and HTTP/1.1, where each answer has a header, and a body of
 * the length that it says. See monitor.h.
 */
#define _GNU_SOURCE
#include "monitor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Waits for more text. */
static int receive(struct monitor *m, int64_t due, struct fault *f) {
  for (;;) {
    int64_t left = due - now_us();
    struct pollfd p = {m->fd, POLLIN, 0};
    int n = left > 0 ? poll(&p, 1, (int)(left / 1000) + 1) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(f, n < 0 ? errno : ETIMEDOUT, "the VMM's monitor did not answer in time");
    ssize_t got = recv(m->fd, m->text + m->length, sizeof m->text - m->length, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return fail(f, got < 0 ? errno : ESRCH, "the VMM's monitor has closed its connection");
    m->length += (size_t)got;
    return 0;
  }
}

static void drop(struct monitor *m, size_t length) {
  m->length -= length;
  memmove(m->text, m->text + length, m->length);
}

/* ---- lines ---- */

/* Waits for a whole line at the start of the text. Its length, or -1. */
static int wait_line(struct monitor *m, int64_t due, struct fault *f) {
  for (;;) {
    char *newline = memchr(m->text, '\n', m->length);
    if (newline) return (int)(newline - m->text);
    if (m->length == sizeof m->text) m->length = 0; /* no line of ours is so long */
    if (receive(m, due, f)) return -1;
  }
}

static bool has(const char *line, size_t length, const char *word) { return memmem(line, length, word, strlen(word)) != NULL; }

static int line_answer(struct monitor *m, struct answer *a, size_t *whole, int64_t due, struct fault *f) {
  for (;;) {
    int length = wait_line(m, due, f);
    if (length < 0) return -1;
    /* A quote inside of a text is escaped: none of these words can be part of one. */
    if (!has(m->text, (size_t)length, "\"event\":")) {
      *a = (struct answer){has(m->text, (size_t)length, "\"error\":"), 0, m->text, (size_t)length};
      *whole = (size_t)length + 1;
      return 0;
    }
    drop(m, (size_t)length + 1);
  }
}

/* ---- HTTP ---- */

#define VERSION_TEXT "HTTP/1.1 "

/* The body's length by the header's lines; a header without one has no body. -1 when it cannot be. */
static long body_length(const char *header, const char *end) {
  static const char name[] = "content-length:";
  for (const char *line = header; line < end;) {
    const char *next = memchr(line, '\n', (size_t)(end - line));
    if (!next) break;
    if ((size_t)(next - line) > sizeof name - 1 && !strncasecmp(line, name, sizeof name - 1)) {
      char *stop;
      long length = strtol(line + sizeof name - 1, &stop, 10);
      return (*stop == '\r' || *stop == '\n' || *stop == ' ') && length >= 0 ? length : -1;
    }
    line = next + 1;
  }
  return 0;
}

static int http_answer(struct monitor *m, struct answer *a, size_t *whole, int64_t due, struct fault *f) {
  for (;;) {
    char *end = memmem(m->text, m->length, "\r\n\r\n", 4);
    if (end) {
      size_t header = (size_t)(end - m->text) + 4;
      long body = body_length(m->text, end + 2);
      unsigned status = 0;
      for (const char *digit = m->text + strlen(VERSION_TEXT); digit < end && *digit >= '0' && *digit <= '9' && status < 100; digit++) status = status * 10 + (unsigned)(*digit - '0');
      if (strncmp(m->text, VERSION_TEXT, strlen(VERSION_TEXT)) || status < 100 || body < 0 || (size_t)body > sizeof m->text - header)
        return fail(f, EPROTO, "the VMM's answer is not understood: %.100s", m->text);
      if (m->length >= header + (size_t)body) {
        *a = (struct answer){status > 299, status, m->text + header, (size_t)body};
        *whole = header + (size_t)body;
        return 0;
      }
    } else if (m->length == sizeof m->text) return fail(f, EPROTO, "the VMM's answer has no end");
    if (receive(m, due, f)) return -1;
  }
}

/* ---- both ---- */

static int next_answer(struct monitor *m, struct answer *a, size_t *whole, int64_t due, struct fault *f) {
  return m->speaks == SPEAKS_HTTP ? http_answer(m, a, whole, due, f) : line_answer(m, a, whole, due, f);
}

int monitor_answer(struct monitor *m, struct answer *a, int64_t due, struct fault *f) {
  drop(m, m->taken);
  m->taken = 0;
  if (next_answer(m, a, &m->taken, due, f)) return -1;
  if (m->owed) m->owed--; /* a greeting is owed by nobody */
  return 0;
}

int monitor_send(struct monitor *m, const char *command, struct fault *f) {
  size_t length = strlen(command);
  /* A command is far smaller than a socket's buffer. */
  if (send(m->fd, command, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length) return m->owed++, 0;
  return fail(f, errno, "send to the VMM's monitor: %s", strerror(errno));
}

int monitor_command(struct monitor *m, const char *command, int64_t due, struct fault *f) {
  struct answer a;
  if (monitor_send(m, command, f)) return -1;
  /* An answer that came too late for the command before is not this one's. */
  do {
    if (monitor_answer(m, &a, due, f)) return -1;
  } while (m->owed);
  if (!a.refused) return 0;
  int words = (int)strcspn(command, "\r\n"), length = a.length > 160 ? 160 : (int)a.length;
  return fail(f, EPROTO, "the VMM refused %.*s: %.*s", words > 80 ? 80 : words, command, length, a.text);
}

int monitor_open(struct monitor *m, const char *socket_name, int64_t due, struct fault *f) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  struct answer greeting;
  m->length = m->taken = m->owed = 0;
  strncpy(to.sun_path, socket_name, sizeof to.sun_path - 1);
  m->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (m->fd < 0 || connect(m->fd, (struct sockaddr *)&to, sizeof to)) return fail(f, errno, "connect to %s: %s", socket_name, strerror(errno));
  if (m->speaks == SPEAKS_HTTP) return 0;
  /* Its greeting, then out of negotiation. */
  if (monitor_answer(m, &greeting, due, f)) return -1;
  return monitor_command(m, "{\"execute\":\"qmp_capabilities\"}", due, f);
}

void monitor_close(struct monitor *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
}
