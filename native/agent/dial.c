/*
 * DIAL: one TCP connection to the guest's loopback, 127.0.0.1 and then ::1. No byte is kept here: what the host's window has no
 * room for stays in the socket, and so slows its writer; what the socket does not take stays in the slot, and so the host.
 */
#include "agent.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_MS 10000 /* a loopback that drops packets */
#define CHUNK 65536

struct dial {
  struct watched watched;
  struct timer deadline;
  struct slot *slot; /* NULL: free */
  uint16_t port;
  bool second, connected, in_loop, read_ended, write_ended;
  uint32_t events;
  int refused; /* errno of the first address */
};

static struct dial dials[FK_MAX_REQUESTS];

static void connect_next(struct dial *d, int first_error);

static void drop_socket(struct dial *d) {
  if (d->in_loop) loop_remove(&d->watched);
  if (d->watched.fd >= 0) close(d->watched.fd);
  d->watched.fd = -1;
  d->in_loop = false;
}

static void drop(struct dial *d) {
  drop_socket(d);
  timer_clear(&d->deadline);
}

static void finish(struct dial *d, int status, int err, const char *text) {
  static const struct slot_ops none;
  static struct out o;
  struct slot *s = d->slot;
  bool connected = d->connected;
  uint16_t port = d->port;
  drop(d);
  d->slot = NULL;
  slot_set(s, &none, NULL);
  if (!connected) {
    slot_fail(s, status, err, "cannot connect to port %u of the guest: %s", port, text);
    return;
  }
  o.size = 0;
  o.overflow = false;
  if (status != ST_OK) out_bytes(&o, F_MESSAGE, text, strlen(text));
  slot_end(s, 1);
  slot_done(s, status, err, &o);
}

/* Waits for what can be acted on only: a socket that has hung up would wake the loop for ever. */
static void want(struct dial *d, uint32_t events) {
  if (events == d->events && d->in_loop == (events != 0)) return;
  int r = 0;
  if (events == 0 && d->in_loop) loop_remove(&d->watched);
  else if (events != 0) r = d->in_loop ? loop_change(&d->watched, events) : loop_add(&d->watched, events);
  d->in_loop = events != 0 && r == 0;
  d->events = events;
  if (r < 0) finish(d, status_of_errno(errno), errno, strerror(errno));
}

/* Socket to host. False when the connection is over. */
static bool receive(struct dial *d) {
  static uint8_t bytes[CHUNK];
  while (!d->read_ended) {
    size_t space = slot_space(d->slot, 1);
    if (space == 0) return true;
    ssize_t n = recv(d->watched.fd, bytes, space < CHUNK ? space : CHUNK, 0);
    if (n > 0) {
      slot_write(d->slot, 1, bytes, (size_t)n);
    } else if (n == 0) {
      d->read_ended = true;
      slot_end(d->slot, 1);
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR) {
      finish(d, status_of_errno(errno), errno, strerror(errno));
      return false;
    }
  }
  return true;
}

/* Host to socket. `blocked` is set when the socket is full. False when the connection is over. */
static bool transmit(struct dial *d, bool *blocked) {
  const uint8_t *bytes;
  size_t size;
  while ((size = slot_input(d->slot, &bytes)) > 0) {
    ssize_t n = d->write_ended ? (ssize_t)size : send(d->watched.fd, bytes, size, MSG_NOSIGNAL);
    if (n >= 0) {
      slot_consume(d->slot, (size_t)n);
    } else if (errno == EAGAIN) {
      *blocked = true;
      return true;
    } else if (errno == EPIPE) {
      d->write_ended = true; /* nobody there reads; what it wrote before is still to be handed over */
    } else if (errno != EINTR) {
      finish(d, status_of_errno(errno), errno, strerror(errno));
      return false;
    }
  }
  if (!d->write_ended && slot_input_ended(d->slot)) {
    d->write_ended = true;
    if (shutdown(d->watched.fd, SHUT_WR) < 0 && errno != ENOTCONN) log_line("dial: shutdown: %s", strerror(errno));
  }
  return true;
}

static void exchange(struct dial *d) {
  bool blocked = false;
  if (!transmit(d, &blocked) || !receive(d)) return;
  if (d->read_ended && d->write_ended) {
    finish(d, ST_OK, 0, "");
    return;
  }
  want(d, (!d->read_ended && slot_space(d->slot, 1) > 0 ? EPOLLIN : 0u) | (blocked ? EPOLLOUT : 0u));
}

static void on_connect(struct dial *d) {
  int err = 0;
  socklen_t size = sizeof err;
  if (getsockopt(d->watched.fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0) err = errno;
  if (err) {
    drop_socket(d);
    connect_next(d, err);
    return;
  }
  int on = 1;
  (void)setsockopt(d->watched.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* only speed */
  timer_clear(&d->deadline);
  d->connected = true;
  slot_open(d->slot, true, 1);
  slot_reply(d->slot, NULL);
  if (d->slot) exchange(d);
}

static void on_ready(struct watched *w, uint32_t events) {
  struct dial *d = (struct dial *)((char *)w - offsetof(struct dial, watched));
  (void)events;
  if (!d->slot) return;
  if (d->connected) exchange(d);
  else on_connect(d);
}

static void on_deadline(struct timer *t) {
  struct dial *d = (struct dial *)((char *)t - offsetof(struct dial, deadline));
  if (d->slot && !d->connected) finish(d, ST_TIMEOUT, ETIMEDOUT, "nothing answered within 10 s");
}

/* 0 when it connects or has begun to, else an errno. */
static int attempt(struct dial *d, bool six) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(d->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(d->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int r = six ? connect(fd, (struct sockaddr *)&v6, sizeof v6) : connect(fd, (struct sockaddr *)&v4, sizeof v4);
  int err = r < 0 && errno != EINPROGRESS ? errno : 0;
  d->watched.fd = fd;
  d->events = 0;
  if (!err) want(d, EPOLLOUT);
  else drop_socket(d);
  return err;
}

/* Tries the next address; `failed` is why the one before did not connect, or 0. */
static void connect_next(struct dial *d, int failed) {
  if (failed == 0) failed = attempt(d, false);
  if (failed == 0) return;
  if (d->refused == 0) d->refused = failed;
  if (!d->second) {
    d->second = true;
    if (attempt(d, true) == 0) return;
  }
  /* The first address's reason: that there is no IPv6 says nothing of the port. */
  finish(d, status_of_errno(d->refused), d->refused, d->refused == ECONNREFUSED ? "nothing listens there" : strerror(d->refused));
}

static void on_input(struct slot *s) {
  struct dial *d = slot_context(s);
  if (d->connected) exchange(d);
}

static void on_writable(struct slot *s, int channel) {
  (void)channel;
  on_input(s);
}

static void on_reset(struct slot *s) {
  finish(slot_context(s), ST_CANCELLED, ECANCELED, "the connection was given up by the host");
}

static void on_release(struct slot *s) {
  struct dial *d = slot_context(s);
  drop(d);
  d->slot = NULL;
}

void verb_dial(struct slot *s, const struct fields *f) {
  static const struct slot_ops ops = {on_input, on_writable, on_reset, on_release};
  uint32_t port = fields_u32(f, F_PORT, 0);
  if (port < 1 || port > 65535) {
    slot_fail(s, ST_INVALID, EINVAL, "the port %u is not one of 1 to 65535", port);
    return;
  }
  struct dial *d = NULL;
  for (size_t i = 0; i < FK_MAX_REQUESTS && !d; i++)
    if (!dials[i].slot) d = &dials[i];
  if (!d) {
    slot_fail(s, ST_BUSY, EBUSY, "%d connections are open already", FK_MAX_REQUESTS);
    return;
  }
  *d = (struct dial){.watched = {.fd = -1, .ready = on_ready}, .deadline = {.fire = on_deadline}, .slot = s, .port = (uint16_t)port};
  slot_set(s, &ops, d);
  timer_set(&d->deadline, CONNECT_MS);
  connect_next(d, 0);
}
