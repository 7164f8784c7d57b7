/*
 * The transport: bytes that may break off, or be the rest of somebody else's conversation, at any place.
 *
 * SYNC is looked for everywhere in what arrives. A frame that it interrupts is forgotten, in both directions: half a frame in
 * the send buffer is dropped and SYNC_REPLY goes out whole; the host discards what came before it.
 *
 * Watched edge-triggered: a virtio-serial port without a host reports EPOLLHUP for as long as that lasts, which would make a
 * level-triggered loop spin.
 */
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READS_PER_STEP 8
#define WRITES_PER_STEP 8
#define REOPEN_MS 200
/* Output that comes in steps of less than this, so many in a row with nothing from the host, is a trickle. */
#define TRICKLE_BYTES 8192
#define TRICKLE_STEPS 4
/* A SYNC that arrives in two reads is whole within this time, in an emulated guest too. */
#define HOLD_MS 30

static void stream_ready(struct watched *w, uint32_t events);
static void listener_ready(struct watched *w, uint32_t events);
static void reopen(struct timer *t);
static void held_long_enough(struct timer *t);

static struct watched stream = {.fd = -1, .ready = stream_ready};
static struct watched listener = {.fd = -1, .ready = listener_ready};
static struct timer reopening = {.fire = reopen};
static struct timer hold = {.fire = held_long_enough};
static const char *device;
static bool readable, writable;
/* A port says that it has no host. Bytes of the next one may come before its arrival does: they travel in another queue. */
static bool hostless;
static bool synced; /* the host spoke SYNC here and has kept to the rules since: frames are believed and sent */

static uint8_t rx[65536];
static size_t rx_at, rx_have; /* parsed, filled */
static size_t rx_scanned;     /* no magic begins before */

/* Two DATA frames, which is also what one write to a virtio-serial port takes. */
static uint8_t tx[2 * DATA_FRAME + 64];
static size_t tx_at, tx_have;

static bool reply_due, resumed_due, reply_resumed;
static uint8_t reply_nonce[16], reply_session[16];

static size_t step_in, step_out; /* bytes of this step */
static int trickle;              /* steps in a row that only sent, and little */

static void start_over(void) {
  timer_clear(&hold);
  rx_at = rx_have = rx_scanned = 0;
  tx_at = tx_have = 0;
  reply_due = resumed_due = synced = false;
}

/* The host left a port that stays open. Nothing is sent until the next one has said SYNC. */
static void host_gone(void) {
  if (hostless) return; /* known; what came since is the next one's */
  hostless = true;
  synced = reply_due = resumed_due = false;
  tx_at = tx_have = 0;
  session_gone();
}

static void stream_closed(void) {
  if (stream.fd < 0) return;
  loop_remove(&stream);
  close(stream.fd);
  stream.fd = -1;
  readable = writable = false;
  start_over();
  session_gone();
}

static int stream_adopt(int fd) {
  stream_closed();
  stream.fd = fd;
  readable = writable = true;
  hostless = device != NULL; /* until the first event tells */
  return loop_add(&stream, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

static void stream_lost(void) {
  stream_closed();
  if (device)
    timer_set(&reopening, REOPEN_MS);
  else if (listener.fd < 0)
    loop_stop(0);
}

static int device_open(void) {
  int fd = open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  return fd < 0 ? -1 : stream_adopt(fd);
}

static void reopen(struct timer *t) {
  if (device_open()) timer_set(t, REOPEN_MS);
}

int conn_open(const char *path, int fd) {
  if (path) {
    device = path;
    return device_open();
  }
  int accepts = 0;
  socklen_t size = sizeof accepts;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)) return -1;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size)) accepts = 0;
  if (!accepts) return stream_adopt(fd);
  listener.fd = fd;
  return loop_add(&listener, EPOLLIN);
}

static void listener_ready(struct watched *w, uint32_t events) {
  (void)events;
  /* The newest connection is the host's; the one before may be a leftover that nobody will ever close. */
  int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0 && stream_adopt(fd)) stream_closed();
}

static void stream_ready(struct watched *w, uint32_t events) {
  (void)w;
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable = true;
  if (events & EPOLLOUT) writable = true;
  if (events & EPOLLHUP) {
    host_gone();
  } else if (hostless) {
    hostless = false;
    if (synced) session_back();
  }
}

/* What a frame of the type may be long; 0 for types that the host does not send. */
static bool length_possible(uint8_t type, uint32_t length) {
  switch (type) {
    case FT_REQ: return length <= FK_MAX_PAYLOAD;
    case FT_DATA: return length > 8 && length <= FK_MAX_PAYLOAD;
    case FT_ACK: return length == 16;
    case FT_EOF: case FT_PING: return length == 8;
    case FT_RESET: case FT_FIN: return length == 0;
    default: return false;
  }
}

static void parse_frames(size_t stop) {
  while (synced && stop - rx_at >= FK_HEADER_SIZE) {
    const uint8_t *h = rx + rx_at;
    uint32_t length = get32(h + 8);
    if (h[0] != 'f' || h[1] != 'k' || get32(h + 12) != 0 || !length_possible(h[2], length)) {
      log_line("the host sent something that is no frame (type %u, %u bytes): waiting for its SYNC", h[2], length);
      synced = false;
      return;
    }
    if (length > stop - rx_at - FK_HEADER_SIZE) return;
    rx_at += FK_HEADER_SIZE + length;
    if (!session_frame(h[2], h[3], get32(h + 4), h + FK_HEADER_SIZE, length)) {
      log_line("the host broke the protocol (frame type %u of request %u): waiting for its SYNC", h[2], get32(h + 4));
      synced = false;
      return;
    }
  }
}

/* 64 bytes that begin with the magic. False: not a SYNC, such as one that broke off and was followed by another. */
static bool sync_received(const uint8_t *p) {
  if (get32(p + 20) != 0 || get64(p + 56) != 0) return false;
  memcpy(reply_nonce, p + 24, 16);
  memcpy(reply_session, p + 40, 16);
  tx_at = tx_have = 0;
  reply_due = true;
  synced = get16(p + 16) == FK_VERSION;
  /* A host of another version is told ours, and nothing changes. */
  reply_resumed = synced && session_sync(reply_session);
  resumed_due = synced;
  if (hostless) session_gone(); /* should it leave again unseen, it is missed in time all the same */
  return true;
}

/* How many of the last bytes may be the first of a magic. */
static size_t perhaps_magic(void) {
  static const uint8_t m[16] = FK_SYNC_MAGIC;
  size_t n = rx_have < 15 ? rx_have : 15;
  while (n && memcmp(rx + rx_have - n, m, n)) n--;
  return n;
}

/*
 * `patient`: bytes at the end that may begin a SYNC are not taken for the rest of a frame that broke off, until more has
 * come or HOLD_MS have passed. A frame that truly ends in such bytes is late by that, when nothing follows it.
 */
static void parse(bool patient) {
  timer_clear(&hold);
  for (;;) {
    size_t from = rx_scanned > rx_at ? rx_scanned : rx_at;
    const uint8_t *magic = find_magic(rx + from, rx_have - from);
    /* What stands right before a SYNC is not believed: it may be a frame that broke off and the first bytes of another SYNC
       that did. Were there whole frames among it, the host sends them again, as after any break. */
    size_t held = magic || !patient ? 0 : perhaps_magic();
    size_t stop = magic ? (size_t)(magic - rx) : rx_have - held;
    if (!magic && stop > rx_at) parse_frames(stop);
    if (held && synced) timer_set(&hold, HOLD_MS);
    if (!magic) {
      /* The last 15 bytes may be the first of a magic. */
      size_t tail = rx_have > 15 ? rx_have - 15 : 0;
      if (tail > rx_scanned) rx_scanned = tail;
      if (!synced && rx_at < rx_scanned) rx_at = rx_scanned;
      break;
    }
    rx_at = rx_scanned = stop;
    size_t have = rx_have - stop < FK_SYNC_SIZE ? rx_have - stop : FK_SYNC_SIZE;
    const uint8_t *later = find_magic(rx + stop + 1, have - 1);
    if (later) { /* the first one broke off */
      rx_at = rx_scanned = (size_t)(later - rx);
      continue;
    }
    if (have < FK_SYNC_SIZE) break;
    if (sync_received(rx + stop)) {
      rx_at = rx_scanned = stop + FK_SYNC_SIZE;
    } else {
      rx_at = rx_scanned = stop + 1;
      synced = false;
    }
  }
  if (rx_at) {
    memmove(rx, rx + rx_at, rx_have - rx_at);
    rx_have -= rx_at;
    rx_scanned = rx_scanned > rx_at ? rx_scanned - rx_at : 0;
    rx_at = 0;
  }
}

static void held_long_enough(struct timer *t) {
  (void)t;
  parse(false);
}

static void receive(void) {
  for (int i = 0; i < READS_PER_STEP && readable; i++) {
    ssize_t n = read(stream.fd, rx + rx_have, sizeof rx - rx_have);
    if (n > 0) {
      rx_have += (size_t)n;
      step_in += (size_t)n;
      parse(true);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    readable = false;
    if (n < 0 && errno == EAGAIN) return;
    /* A port without a host reads as ended, and comes back with an edge. Everything else is over. */
    if (n == 0 && device) {
      host_gone();
      return;
    }
    stream_lost();
    return;
  }
}

static void fill(void) {
  tx_at = tx_have = 0;
  if (reply_due) {
    static const uint8_t magic[16] = FK_SYNC_REPLY_MAGIC;
    memset(tx, 0, FK_SYNC_SIZE);
    memcpy(tx, magic, 16);
    put16(tx + 16, FK_VERSION);
    put16(tx + 18, reply_resumed ? 1 : 0);
    memcpy(tx + 24, reply_nonce, 16);
    memcpy(tx + 40, reply_session, 16);
    put64(tx + 56, session_count());
    tx_have = FK_SYNC_SIZE;
    reply_due = false;
  }
  if (resumed_due) {
    uint8_t *h = tx + tx_have;
    size_t length = session_resumed(h + FK_HEADER_SIZE);
    memset(h, 0, FK_HEADER_SIZE);
    h[0] = 'f';
    h[1] = 'k';
    h[2] = FT_RESUMED;
    put32(h + 8, (uint32_t)length);
    tx_have += FK_HEADER_SIZE + length;
    resumed_due = false;
  }
  if (!synced) return;
  size_t n;
  while (sizeof tx - tx_have >= DATA_FRAME + 64 && (n = send_next(tx + tx_have))) tx_have += n;
}

/* True when its share of a turn was used up, so that there may be more. */
static bool transmit(void) {
  for (int i = 0; i < WRITES_PER_STEP && writable; i++) {
    if (tx_at == tx_have) fill();
    if (tx_at == tx_have) return false;
    ssize_t n = write(stream.fd, tx + tx_at, tx_have - tx_at);
    if (n > 0) {
      tx_at += (size_t)n;
      step_out += (size_t)n;
    } else if (n < 0 && errno == EAGAIN)
      writable = false;
    else if (n < 0 && errno != EINTR) {
      stream_lost();
      return false;
    }
  }
  return writable;
}

bool conn_trickles(void) { return trickle >= TRICKLE_STEPS; }

/* The loop takes a step before each wait, so nothing has to be remembered. */
void conn_kick(void) {}

bool conn_step(void) {
  step_in = step_out = 0;
  if (stream.fd >= 0 && readable) receive();
  session_notify();
  bool more = stream.fd >= 0 && writable && transmit();
  if (step_in || step_out >= TRICKLE_BYTES) trickle = 0;
  else if (step_out && trickle < TRICKLE_STEPS) trickle++;
  return stream.fd >= 0 && (readable || more);
}
