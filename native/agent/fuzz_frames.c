/*
 * Feeds the scanner, the frame parser, the sessions and the fields with streams that are almost right:
 *
 *   fuzz_frames [--seconds N] [--seed N] [--once FILE]
 *
 * Its own generator, so that a seed repeats a run anywhere. Built with sanitizers and in place of main.c; what fails prints the
 * seed of its stream. After each stream a well-formed SYNC and PING must be answered: nothing that came before may stop that.
 */
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAM_MAX (1 << 20)

struct options options = {.real = false, .root = "/nonexistent"};

static uint64_t state, current_seed;
static uint8_t stream[STREAM_MAX];
static size_t size;
static int host = -1; /* the host's end */
static uint64_t answered;
static struct watched *transport; /* what the loop would tell of */

static uint32_t rnd(uint32_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return below ? (uint32_t)((state * UINT64_C(0x2545f4914f6cdd1d)) >> 32) % below : 0;
}

/* ---- what main.c is to the others, without a loop */

void log_line(const char *format, ...) { (void)format; }
uint64_t now_ms(void) { return 0; }
int loop_add(struct watched *w, uint32_t events) { transport = w; (void)events; return 0; }
int loop_change(struct watched *w, uint32_t events) { (void)w; (void)events; return 0; }
void loop_remove(struct watched *w) { (void)w; }
void loop_stop(int code) { (void)code; }
void timer_set(struct timer *t, uint64_t after_ms) { t->at_ms = after_ms + 1; }
void timer_clear(struct timer *t) { t->at_ms = 0; }

/* ---- verbs: one that answers, one that fails, one that echoes, one that never answers */

static void echo(struct slot *s) {
  const uint8_t *bytes;
  for (size_t n; (n = slot_input(s, &bytes));) {
    size_t took = slot_write(s, 1, bytes, n);
    if (!took) return;
    slot_write(s, 2, bytes, took > 7 ? 7 : took);
    slot_consume(s, took);
  }
  if (slot_input_ended(s)) slot_done(s, ST_OK, 0, NULL);
}
static void echo_room(struct slot *s, int channel) { (void)channel; echo(s); }
static const struct slot_ops echo_ops = {.input = echo, .writable = echo_room};

void verb_dispatch(struct slot *s, uint16_t verb, const struct fields *f) {
  struct field x;
  char text[256];
  static struct out o;
  o = (struct out){.size = 0};
  for (size_t at = 0; fields_next(f, &at, &x);) out_bytes(&o, x.tag, x.bytes, x.length);
  (void)fields_string(f, F_PATH, text, sizeof text);
  answered++;
  switch (verb % 5) {
    case 0: slot_reply(s, &o); return;
    case 1: slot_fail(s, ST_INVALID, EINVAL, "%u %llu", verb, (unsigned long long)fields_u64(f, F_OFFSET, fields_u32(f, F_PID, 0))); return;
    case 2: case 3:
      slot_set(s, &echo_ops, NULL);
      slot_open(s, true, verb % 5 - 1);
      slot_reply(s, NULL);
      return;
    default: return;
  }
}

/* ---- streams */

static void put(const void *bytes, size_t n) {
  if (n > STREAM_MAX - size) n = STREAM_MAX - size;
  memcpy(stream + size, bytes, n);
  size += n;
}

static void put_sync(bool same) {
  static const uint8_t magic[16] = FK_SYNC_MAGIC;
  uint8_t b[FK_SYNC_SIZE] = {0};
  memcpy(b, magic, 16);
  put16(b + 16, rnd(20) ? FK_VERSION : (uint16_t)rnd(4));
  for (int i = 24; i < 40; i++) b[i] = (uint8_t)rnd(256);
  memset(b + 40, same ? 7 : (int)rnd(256), 16);
  put(b, rnd(8) ? sizeof b : rnd(sizeof b));
}

static size_t some_fields(uint8_t *to, size_t capacity) {
  size_t n = 0;
  while (rnd(4) && n + 8 < capacity) {
    uint32_t lengths[] = {4, 8, 16, 32, 48, rnd(64), rnd(1024)};
    uint32_t length = lengths[rnd(7)];
    if (n + 8 + length > capacity) break;
    /* Mostly byte strings, which may have any length: else nearly no request would pass. */
    put16(to + n, (uint16_t)(rnd(12) ? (uint16_t[]){F_ARG, F_ENV, F_PATH, F_NAME}[rnd(4)] : rnd(F_LANGUAGE + 2)));
    put16(to + n + 2, rnd(200) ? 0 : 1);
    put32(to + n + 4, rnd(200) ? length : rnd(2) ? UINT32_MAX : length + rnd(100));
    for (uint32_t i = 0; i < length; i++) to[n + 8 + i] = (uint8_t)rnd(256);
    n += 8 + length;
  }
  return n;
}

/* The request that takes input, and how much it got: data mostly continues there. */
static uint32_t last_echo;
static uint64_t sent;

static void put_frame(uint32_t *next_id) {
  static uint8_t p[FK_MAX_PAYLOAD + 64];
  uint8_t type = (uint8_t)(rnd(40) ? (uint8_t[]){FT_REQ, FT_DATA, FT_ACK, FT_EOF, FT_RESET, FT_FIN, FT_PING}[rnd(7)] : rnd(256));
  uint8_t sub = 0;
  uint32_t id = *next_id ? 1 + rnd(*next_id) : 1;
  size_t n = 0;
  switch (type) {
    case FT_REQ:
      sub = (uint8_t)!rnd(4);
      if (rnd(5)) id = ++*next_id;
      put16(p, (uint16_t)rnd(30));
      if (!sub && get16(p) % 5 >= 2 && get16(p) % 5 <= 3) {
        last_echo = id;
        sent = 0;
      }
      put16(p + 2, 0);
      n = 4 + some_fields(p + 4, rnd(4) ? 2000 : FK_MAX_PAYLOAD - 4);
      break;
    case FT_DATA:
      if (rnd(10)) id = last_echo;
      put64(p, rnd(30) ? sent : rnd(5000));
      n = 9 + rnd(rnd(10) ? 300 : FK_MAX_PAYLOAD - 9);
      for (size_t i = 8; i < n; i++) p[i] = (uint8_t)(i * 31);
      if (rnd(20)) sent += n - 8;
      break;
    case FT_ACK:
      sub = (uint8_t)(1 + rnd(2));
      put64(p, rnd(3) ? 0 : rnd(300));
      put64(p + 8, rnd(10) ? 262144 + rnd(100000) : UINT64_MAX);
      n = 16;
      break;
    case FT_EOF: id = last_echo; put64(p, rnd(4) ? sent : rnd(300)); n = 8; break;
    case FT_PING: n = 8; break;
    default: n = 0;
  }
  if (!rnd(100)) sub = (uint8_t)rnd(256);
  uint8_t h[FK_HEADER_SIZE] = {'f', 'k', type, sub};
  put32(h + 4, rnd(100) ? id : rnd(2) ? 0 : UINT32_MAX);
  put32(h + 8, rnd(60) ? (uint32_t)n : rnd(2) ? UINT32_MAX - rnd(40) : rnd(20000));
  put32(h + 12, rnd(200) ? 0 : 1);
  put(h, sizeof h);
  put(p, rnd(60) ? n : rnd((uint32_t)n + 1));
}

static void make_stream(void) {
  uint32_t next_id = 0;
  size = 0;
  last_echo = 1;
  sent = 0;
  if (rnd(3)) {
    put_sync(true);
  }
  for (uint32_t n = rnd(60); n && size < STREAM_MAX / 2; n--) {
    if (!rnd(12)) put_sync(rnd(4) != 0);
    put_frame(&next_id);
  }
  for (uint32_t n = rnd(3) ? 0 : rnd(8); n && size; n--) stream[rnd((uint32_t)size)] ^= (uint8_t)(1u << rnd(8));
}

/* ---- delivery in pieces of any size, and what comes back */

static uint8_t back[1 << 16];
static size_t back_size;

static void failed(const char *what) {
  fprintf(stderr, "fuzz_frames: %s: repeat with --seed %llu\n", what, (unsigned long long)current_seed);
  abort();
}

static void take_back(void) {
  static const uint8_t magic[16] = FK_SYNC_MAGIC;
  for (ssize_t n; (n = read(host, back + back_size, sizeof back - back_size)) > 0;) {
    back_size += (size_t)n;
    if (memmem(back, back_size, magic, 16)) failed("SYNC's magic was sent by the guest");
    if (back_size > sizeof back / 2) {
      memmove(back, back + back_size - 256, 256); /* only the tail is looked at later */
      back_size = 256;
    }
  }
}

static void step(void) {
  for (int i = 0; i < 100 && conn_step(); i++) {
    take_back();
    transport->ready(transport, EPOLLOUT);
  }
  take_back();
}

static void deliver(void) {
  for (size_t at = 0; at < size;) {
    size_t n = rnd(4) ? 1 + rnd(5000) : 1 + rnd(20);
    if (n > size - at) n = size - at;
    ssize_t w = write(host, stream + at, n);
    if (w > 0) at += (size_t)w;
    else if (errno != EAGAIN) failed("the guest closed the stream");
    transport->ready(transport, EPOLLIN | EPOLLOUT); /* the edge */
    step();
  }
}

static void must_answer(void) {
  static const uint8_t magic[16] = FK_SYNC_MAGIC, reply[16] = FK_SYNC_REPLY_MAGIC;
  size = 0;
  /* A SYNC of exact form, preceded by what completes no frame of the stream's end. */
  uint8_t b[FK_SYNC_SIZE + FK_HEADER_SIZE + 8] = {0};
  memcpy(b, magic, 16);
  put16(b + 16, FK_VERSION);
  put64(b + 24, current_seed);
  put64(b + 40, ~current_seed); /* a session of its own: nothing to resend stands between the answers */
  memcpy(b + 64, (uint8_t[]){'f', 'k', FT_PING, 0}, 4);
  put32(b + 72, 8);
  put64(b + 80, current_seed * 3 + 1);
  put(b, sizeof b);
  deliver();
  uint8_t nonce[8], echoed[8];
  put64(nonce, current_seed);
  put64(echoed, current_seed * 3 + 1);
  const uint8_t *r = memmem(back, back_size, reply, 16);
  while (r && (size_t)(back + back_size - r) > 16 && memcmp(r + 24, nonce, 8))
    r = memmem(r + 1, (size_t)(back + back_size - r - 1), reply, 16);
  if (!r) failed("SYNC was not answered");
  if (!memmem(r, (size_t)(back + back_size - r), echoed, 8)) failed("PING was not answered");
  back_size = 0;
}

int main(int argc, char **argv) {
  unsigned long seconds = 5;
  uint64_t seed = 1;
  const char *file = NULL;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--seconds")) seconds = strtoul(argv[i + 1], NULL, 10);
    else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
    else if (!strcmp(argv[i], "--once")) file = argv[i + 1];
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) {
    perror("socketpair");
    return 1;
  }
  host = ends[0];
  slots_init();
  if (conn_open(NULL, ends[1])) {
    perror("conn_open");
    return 1;
  }
  time_t end = time(NULL) + (time_t)seconds;
  uint64_t streams = 0;
  do {
    current_seed = seed + streams;
    state = current_seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (int i = 0; i < 8; i++) rnd(2);
    if (file) {
      int fd = open(file, O_RDONLY | O_CLOEXEC);
      ssize_t n = fd < 0 ? -1 : read(fd, stream, sizeof stream);
      if (n < 0) {
        perror(file);
        return 1;
      }
      size = (size_t)n;
      close(fd);
    } else {
      make_stream();
    }
    deliver();
    must_answer();
    streams++;
  } while (!file && time(NULL) < end);
  printf("fuzz_frames: %llu streams, %llu requests dispatched, %llu sessions, seeds %llu to %llu\n",
         (unsigned long long)streams, (unsigned long long)answered, (unsigned long long)session_count(),
         (unsigned long long)seed, (unsigned long long)current_seed);
  return 0;
}
