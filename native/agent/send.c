/*
 * What to send next. Answers, acknowledgements and ends go first, in the order that each request needs; then output,
 * one frame a channel and turn, so that no request starves another.
 */
#include "session.h"
#include <string.h>

#define PONGS 16
#define WORDS ((SLOTS + 63) / 64)
#define LIMIT_STEP 32768 /* a limit that rose by less is not worth a frame */

static uint64_t maybe[WORDS]; /* slots that may have something to send */
static uint32_t turn;         /* channel (slot * 2 + channel - 1) that is first for output */
static uint8_t pongs[PONGS][8];
static unsigned pongs_first, pongs_count;

void send_mark(const struct slot *s) {
  uint32_t i = slot_index(s);
  maybe[i / 64] |= UINT64_C(1) << (i % 64);
}

void send_forget_pongs(void) { pongs_count = 0; }

void send_pong(const uint8_t bytes[8]) {
  /* A host that floods pings without reading loses the oldest answers. */
  if (pongs_count == PONGS) {
    pongs_first = (pongs_first + 1) % PONGS;
    pongs_count--;
  }
  memcpy(pongs[(pongs_first + pongs_count++) % PONGS], bytes, 8);
}

static size_t header(uint8_t *to, uint8_t type, uint8_t sub, uint32_t id, size_t length) {
  to[0] = 'f';
  to[1] = 'k';
  to[2] = type;
  to[3] = sub;
  put32(to + 4, id);
  put32(to + 8, (uint32_t)length);
  put32(to + 12, 0);
  return FK_HEADER_SIZE + length;
}

static size_t acknowledgement(struct slot *s, uint8_t *to) {
  if (!s->input_open || s->state == RS_RECEIVING) return 0;
  uint64_t received = s->in.end, limit = s->in.first + s->in.capacity;
  if (!s->ack_due && received == s->told_received && limit - s->told_limit < LIMIT_STEP) return 0;
  s->ack_due = false;
  s->told_received = received;
  s->told_limit = limit;
  put64(to + FK_HEADER_SIZE, received);
  put64(to + FK_HEADER_SIZE + 8, limit);
  return header(to, FT_ACK, 0, s->id, 16);
}

/* The lowest offset that can still be sent. */
static uint64_t lowest(const struct channel *c) {
  if (!c->ring) return c->end;
  uint64_t low = c->ring->first > c->start ? c->ring->first : c->start;
  return c->ended && low > c->end ? c->end : low;
}

/* Everything of a slot but output. */
static size_t control(struct slot *s, uint8_t *to) {
  uint32_t index = slot_index(s);
  if (s->res_due) {
    s->res_due = false;
    s->res_sent = true;
    memcpy(to + FK_HEADER_SIZE, slot_res[index], s->res_size);
    return header(to, FT_RES, 0, s->id, s->res_size);
  }
  size_t n = acknowledgement(s, to);
  if (n) return n;
  if (!s->res_sent || !s->opened || s->failed) return 0;
  bool all = true;
  for (int i = 0; i < 2; i++) {
    struct channel *c = &s->out[i];
    if (!c->open || c->eof_sent) continue;
    if (c->ended && !c->await && (c->sent >= c->end || s->resetting)) {
      c->eof_sent = true;
      put64(to + FK_HEADER_SIZE, c->sent);
      return header(to, FT_EOF, (uint8_t)(i + 1), s->id, 8);
    }
    all = false;
  }
  if (all && s->state == RS_DONE && !s->done_sent) {
    s->done_sent = true;
    memcpy(to + FK_HEADER_SIZE, slot_done_payload[index], s->done_size);
    return header(to, FT_DONE, 0, s->id, s->done_size);
  }
  return 0;
}

/* One DATA frame of a channel, with a GAP before it where bytes are lost. */
static size_t output(struct slot *s, int channel, uint8_t *to) {
  struct channel *c = &s->out[channel - 1];
  if (!s->res_sent || !c->open || c->await || c->eof_sent || s->resetting) return 0;
  size_t size = 0;
  uint64_t low = lowest(c);
  if (c->sent < low) {
    put64(to + FK_HEADER_SIZE, c->sent);
    put64(to + FK_HEADER_SIZE + 8, low);
    size = header(to, FT_GAP, (uint8_t)channel, s->id, 16);
    c->sent = low;
    if (c->high < low) c->high = low;
    to += size;
  }
  if (!c->ring || c->sent >= c->limit) return size;
  const uint8_t *bytes = NULL;
  size_t n = ring_peek(c->ring, c->sent, &bytes);
  const size_t most = DATA_FRAME - FK_HEADER_SIZE - 8;
  if (c->ended && n > c->end - c->sent) n = (size_t)(c->end - c->sent);
  if (n > c->limit - c->sent) n = (size_t)(c->limit - c->sent);
  if (n > most) n = most;
  if (!n) return size;
  const uint8_t *magic = find_magic(bytes, n);
  if (magic) n = (size_t)(magic - bytes) + 8; /* half of it now: the next header stands in between */
  put64(to + FK_HEADER_SIZE, c->sent);
  memcpy(to + FK_HEADER_SIZE + 8, bytes, n);
  c->sent += n;
  if (c->high < c->sent) c->high = c->sent;
  return size + header(to, FT_DATA, (uint8_t)channel, s->id, 8 + n);
}

static size_t next_control(uint8_t *to) {
  if (pongs_count) {
    memcpy(to + FK_HEADER_SIZE, pongs[pongs_first], 8);
    pongs_first = (pongs_first + 1) % PONGS;
    pongs_count--;
    return header(to, FT_PONG, 0, 0, 8);
  }
  for (uint32_t w = 0; w < WORDS; w++)
    for (uint64_t bits = maybe[w]; bits; bits &= bits - 1) {
      struct slot *s = slot_of(w * 64 + (uint32_t)__builtin_ctzll(bits));
      size_t n = s && s->id ? control(s, to) : 0;
      if (n) return n;
    }
  return 0;
}

size_t send_next(uint8_t *to) {
  size_t n = next_control(to);
  if (n) return n;
  /* From `turn` to the end, then from the start: bit by bit, skipping empty words. */
  for (uint32_t step = 0, at = turn; step < SLOTS * 2;) {
    uint32_t i = at / 2;
    if (!(maybe[i / 64] >> (i % 64))) { /* nothing in the rest of this word */
      uint32_t to_next = (64 - i % 64) * 2 - at % 2;
      if (at + to_next > SLOTS * 2) to_next = SLOTS * 2 - at;
      step += to_next;
      at = (at + to_next) % (SLOTS * 2);
      continue;
    }
    struct slot *s = &slots[i];
    if (s->id && maybe[i / 64] >> (i % 64) & 1 && (n = output(s, (int)(at % 2) + 1, to))) {
      turn = (at + 1) % (SLOTS * 2);
      return n;
    }
    step++;
    at = (at + 1) % (SLOTS * 2);
  }
  /* Nothing anywhere. Whatever changes that marks its slot. */
  memset(maybe, 0, sizeof maybe);
  return 0;
}
