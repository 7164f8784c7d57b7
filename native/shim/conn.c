/* Connections of daemons: frames in and out. One daemon is usual; a few more may ask at the same time. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim.h"

#define MAX_CONNS 8
#define SEND_TIMEOUT_MS 2000

struct conn {
  int fd; /* -1: free */
  uint8_t header[SHIM_HEADER_SIZE];
  uint8_t *payload;
  size_t got; /* bytes of header and payload that have come */
};
static struct conn conns[MAX_CONNS];
static int listener = -1;

static uint32_t load32(const uint8_t *p) { return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24; }

/* ---- fields ---- */

static const uint8_t *take(struct reader *r, size_t n) {
  if (r->bad || (size_t)(r->end - r->at) < n) {
    r->bad = true;
    return NULL;
  }
  const uint8_t *p = r->at;
  r->at += n;
  return p;
}
uint32_t get_u32(struct reader *r) {
  const uint8_t *p = take(r, 4);
  return p ? load32(p) : 0;
}
uint64_t get_u64(struct reader *r) {
  uint64_t low = get_u32(r);
  return low | (uint64_t)get_u32(r) << 32;
}
char *get_str(struct reader *r) {
  uint32_t length = get_u32(r);
  const uint8_t *p = take(r, length);
  if (p && length && memchr(p, 0, length)) r->bad = true;
  if (!p || r->bad) return NULL;
  char *copy = malloc(length + 1);
  if (!copy) {
    r->bad = true;
    return NULL;
  }
  memcpy(copy, p, length);
  copy[length] = 0;
  return copy;
}

static void put(struct writer *w, const void *bytes, size_t length) {
  if (w->length + length > w->room) {
    size_t room = (w->length + length) * 2;
    uint8_t *data = realloc(w->data, room);
    if (!data) abort(); /* a few KiB: without them the shim cannot answer anybody */
    w->data = data, w->room = room;
  }
  if (length) memcpy(w->data + w->length, bytes, length);
  w->length += length;
}
void put_u32(struct writer *w, uint32_t v) {
  uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
  put(w, b, 4);
}
void put_u64(struct writer *w, uint64_t v) {
  put_u32(w, (uint32_t)v);
  put_u32(w, (uint32_t)(v >> 32));
}
void put_str(struct writer *w, const void *bytes, size_t length) {
  put_u32(w, (uint32_t)length);
  put(w, bytes, length);
}

/* ---- life ---- */

static void add(int fd) {
  for (int i = 0; i < MAX_CONNS; i++)
    if (conns[i].fd < 0) {
      conns[i] = (struct conn){.fd = fd};
      return;
    }
  note("refused a connection: %d are open", MAX_CONNS);
  close(fd);
}

static void drop(struct conn *c) {
  if (c->fd < 0) return;
  close(c->fd);
  free(c->payload);
  *c = (struct conn){.fd = -1};
  conn_gone(c);
}

void conns_start(int first, int listening) {
  for (int i = 0; i < MAX_CONNS; i++) conns[i].fd = -1;
  if (first >= 0) add(first);
  listener = listening;
}

int conns_open(void) {
  int n = 0;
  for (int i = 0; i < MAX_CONNS; i++) n += conns[i].fd >= 0;
  return n;
}

/* Blocks for a daemon that reads slowly, but not for ever: then it is dropped. */
static void send_frame(struct conn *c, uint32_t type, uint32_t id, uint32_t status, const void *payload, size_t length) {
  if (c->fd < 0) return;
  struct writer w = {0};
  uint8_t start[4] = {'f', 's', SHIM_VERSION, (uint8_t)type};
  put(&w, start, 4);
  put_u32(&w, id);
  put_u32(&w, (uint32_t)length);
  put_u32(&w, status);
  put(&w, payload, length);
  int64_t deadline = now_us() + SEND_TIMEOUT_MS * 1000;
  for (size_t sent = 0; sent < w.length;) {
    ssize_t n = send(c->fd, w.data + sent, w.length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += (size_t)n;
      continue;
    }
    int64_t left = deadline - now_us();
    struct pollfd p = {c->fd, POLLOUT, 0};
    if (n < 0 && errno != EAGAIN && errno != EINTR) break;
    if (left <= 0) {
      note("a daemon does not read its replies: its connection is dropped");
      shutdown(c->fd, SHUT_RDWR); /* the loop sees the end and cleans up */
      break;
    }
    poll(&p, 1, (int)(left / 1000) + 1);
  }
  free(w.data);
}

void send_reply(struct conn *c, uint32_t type, uint32_t id, const struct writer *w) {
  send_frame(c, type | SHIM_REPLY, id, 0, w ? w->data : NULL, w ? w->length : 0);
}
void send_failure(struct conn *c, uint32_t type, uint32_t id, const struct fault *f) {
  struct writer w = {0};
  put_str(&w, f->text, strlen(f->text));
  send_frame(c, type | SHIM_REPLY, id, f->code ? (uint32_t)f->code : EIO, w.data, w.length);
  free(w.data);
}
void send_event(struct conn *only, uint32_t type, const struct writer *w) {
  for (int i = 0; i < MAX_CONNS; i++)
    if (!only || only == &conns[i]) send_frame(&conns[i], type, 0, 0, w->data, w->length);
}

/* ---- the loop's part ---- */

int conns_poll(struct pollfd *into, int room) {
  int n = 0;
  if (listener >= 0 && n < room) into[n++] = (struct pollfd){listener, POLLIN, 0};
  for (int i = 0; i < MAX_CONNS && n < room; i++)
    if (conns[i].fd >= 0) into[n++] = (struct pollfd){conns[i].fd, POLLIN, 0};
  return n;
}

static void accept_one(void) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || (peer.uid != geteuid() && peer.uid != 0)) {
    note("refused a connection of user %d", (int)peer.uid);
    close(fd);
    return;
  }
  add(fd);
}

/* Reads what there is of one frame. 1: complete, 0: not yet, -1: the connection is over. */
static int receive(struct conn *c) {
  for (;;) {
    size_t want = SHIM_HEADER_SIZE;
    if (c->got >= SHIM_HEADER_SIZE) {
      uint32_t length = load32(c->header + 8);
      if (c->header[0] != 'f' || c->header[1] != 's' || c->header[2] != SHIM_VERSION || length > SHIM_MAX_PAYLOAD) {
        note("a frame is not of this protocol's version %d: connection dropped", SHIM_VERSION);
        return -1;
      }
      want += length;
      if (c->got == want) return 1;
      if (!c->payload && !(c->payload = malloc(length))) return -1;
    }
    uint8_t *to = c->got < SHIM_HEADER_SIZE ? c->header + c->got : c->payload + (c->got - SHIM_HEADER_SIZE);
    ssize_t n = recv(c->fd, to, want - c->got, MSG_DONTWAIT);
    if (n == 0) return -1;
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    c->got += (size_t)n;
  }
}

static void serve(struct conn *c) {
  int state = receive(c);
  if (state > 0) {
    uint32_t length = load32(c->header + 8), type = c->header[3], id = load32(c->header + 4);
    struct reader r = {c->payload, c->payload + length, false};
    handle_request(c, type, id, &r);
    free(c->payload);
    c->payload = NULL;
    c->got = 0;
  }
  if (state < 0) drop(c);
}

void conns_serve(const struct pollfd *polled, int count) {
  for (int p = 0; p < count; p++) {
    if (!polled[p].revents) continue;
    if (polled[p].fd == listener) accept_one();
    else
      for (int i = 0; i < MAX_CONNS; i++)
        if (conns[i].fd == polled[p].fd) serve(&conns[i]);
  }
}
