/* Frames from the host, and what a session is: ids that are never executed twice, channels that go on after a break. */
#include "session.h"
#include <string.h>

/* Lossless readers are waited for this long after the host broke off. */
#define ABSENCE_MS 10000

static uint8_t session_id[16];
static bool known;          /* session_id is one that the host began */
static uint64_t begun;      /* sessions since the agent started */
static uint32_t highest;    /* largest request id ever begun */
static bool present;
static bool news;           /* session_notify has something to do */

/* The one request that may be in fragments. */
static _Alignas(4096) uint8_t fragments[FK_MAX_REQUEST];
static size_t fragments_size;
static uint32_t fragments_id;

static void absent_too_long(struct timer *t);
static struct timer absence = {.fire = absent_too_long};

static void absent_too_long(struct timer *t) {
  (void)t;
  present = false;
  /* Writers that wait for their reader look again. */
  for (size_t i = 0; i < SLOTS; i++)
    if (slots[i].id) slots[i].room_news = 3; /* bits of both channels */
  news = true;
  conn_kick();
}

bool session_present(void) { return present; }
uint64_t session_count(void) { return begun; }
void session_news(void) { news = true; }

void session_gone(void) {
  if (present && !absence.at_ms) timer_set(&absence, ABSENCE_MS);
}

void session_back(void) {
  timer_clear(&absence);
  present = true;
}

static void rewind_channel(struct slot *s, struct channel *c) {
  c->sent = c->acked;
  c->eof_sent = false;
  c->await = c->high > 0 && !s->resetting;
}

bool session_sync(const uint8_t id[16]) {
  session_back();
  send_forget_pongs();
  fragments_id = 0;
  fragments_size = 0;
  if (known && !memcmp(session_id, id, 16)) {
    for (size_t i = 0; i < SLOTS; i++) {
      struct slot *s = &slots[i];
      if (!s->id) continue;
      s->res_due = s->state >= RS_ANSWERED;
      s->res_sent = s->done_sent = false;
      s->ack_due = s->input_open && s->state > RS_RECEIVING;
      rewind_channel(s, &s->out[0]);
      rewind_channel(s, &s->out[1]);
      send_mark(s);
    }
    return true;
  }
  for (size_t i = 0; i < SLOTS; i++)
    if (slots[i].id) slot_free(&slots[i]);
  memcpy(session_id, id, 16);
  known = true;
  highest = 0;
  begun++;
  return false;
}

size_t session_resumed(uint8_t *to) {
  uint32_t count = 0;
  uint8_t *p = to + 8;
  for (size_t i = 0; i < SLOTS; i++) {
    const struct slot *s = &slots[i];
    if (!s->id) continue;
    put32(p, s->id);
    put32(p + 4, s->state);
    put64(p + 8, s->in.end);
    p += 16;
    count++;
  }
  put32(to, highest);
  put32(to + 4, count);
  return (size_t)(p - to);
}

static void dispatch(struct slot *s) {
  s->state = RS_RUNNING;
  fragments_id = 0;
  struct fields f = {.data = fragments + 4, .size = fragments_size - 4};
  if (fragments_size < 4 || get16(fragments + 2) != 0 || !fields_valid(&f))
    slot_fail(s, ST_INVALID, 0, "request %u is not a verb with whole fields of known tags and lengths", s->id);
  else
    verb_dispatch(s, get16(fragments), &f);
  /* A large request is rare: give its pages back, keep the first. */
  if (fragments_size > 65536) give_back(fragments + 65536, sizeof fragments - 65536);
}

static bool request(uint8_t sub, uint32_t id, const uint8_t *payload, uint32_t length) {
  if (!id || sub > 1) return false;
  struct slot *s = slot_by_id(id);
  if (id > highest) {
    if (fragments_id) return false; /* two requests in fragments */
    highest = id;
    s = slot_take(id, false);
    if (!s) {
      s = slot_take(id, true);
      if (!s) return false;
      slot_fail(s, ST_BUSY, 0, "%d requests are alive, which is the limit: wait for one to end", FK_MAX_REQUESTS);
      return true;
    }
    fragments_id = 0;
  }
  /* Seen before: never twice. Also the fragments that follow an early refusal. */
  if (!s || s->state != RS_RECEIVING) return true;
  if (fragments_id != id) {
    if (fragments_id) return false;
    fragments_id = id;
    fragments_size = 0;
  }
  if (length > sizeof fragments - fragments_size) {
    fragments_id = 0;
    slot_fail(s, ST_TOO_LARGE, 0, "the request is longer than %d bytes", FK_MAX_REQUEST);
    return true;
  }
  memcpy(fragments + fragments_size, payload, length);
  fragments_size += length;
  if (!(sub & 1)) dispatch(s);
  return true;
}

static bool data(uint8_t sub, uint32_t id, const uint8_t *payload, uint32_t length) {
  if (sub != 0) return false;
  struct slot *s = slot_by_id(id);
  if (!s || !s->input_open) return true; /* nobody's any more */
  uint64_t offset = get64(payload);
  uint64_t size = length - 8;
  if (offset > s->in.end || UINT64_MAX - offset < size) return false;
  uint64_t again = s->in.end - offset; /* sent before a break, and had arrived */
  s->ack_due = true;
  send_mark(s);
  if (again >= size) return true;
  if (s->input_eof || size - again > ring_space(&s->in)) return false;
  ring_write(&s->in, payload + 8 + again, (size_t)(size - again));
  s->input_news = news = true;
  return true;
}

static bool input_end(uint8_t sub, uint32_t id, const uint8_t *payload) {
  if (sub != 0) return false;
  struct slot *s = slot_by_id(id);
  if (!s || !s->input_open) return true;
  if (get64(payload) != s->in.end) return false;
  if (!s->input_eof) s->input_news = news = true;
  s->input_eof = true;
  s->ack_due = true;
  send_mark(s);
  return true;
}

static bool acknowledge(uint8_t sub, uint32_t id, const uint8_t *payload) {
  if (sub < 1 || sub > 2) return false;
  struct slot *s = slot_by_id(id);
  if (!s) return true;
  struct channel *c = &s->out[sub - 1];
  uint64_t received = get64(payload), limit = get64(payload + 8);
  if (!c->open) return true; /* after a break the host tells both channels, there or not */
  if (received > c->high) return false;
  if (c->await) {
    c->await = false;
    if (received > c->sent) c->sent = received;
  }
  if (received > c->acked) {
    c->acked = received;
    if (c->sent < received) c->sent = received;
    ring_forget(&c->own, received);
    s->room_news |= (uint8_t)(1 << (sub - 1));
    news = true;
  }
  if (limit > c->limit) c->limit = limit;
  send_mark(s);
  return true;
}

static void reset(struct slot *s) {
  if (s->resetting || s->failed || s->done_sent) return;
  if (s->state == RS_RECEIVING) {
    if (fragments_id == s->id) fragments_id = 0;
    slot_fail(s, ST_CANCELLED, 0, "reset by the host before all of the request had come");
    return;
  }
  if (s->state > RS_RUNNING && !s->opened) return; /* over */
  s->resetting = true;
  s->out[0].await = s->out[1].await = false;
  send_mark(s);
  /* Had ended: DONE goes out without the rest of the output. */
  if (s->state != RS_DONE) slot_tell_reset(s);
}

bool session_frame(uint8_t type, uint8_t sub, uint32_t id, const uint8_t *payload, uint32_t length) {
  switch (type) {
    case FT_REQ: return request(sub, id, payload, length);
    case FT_DATA: return length > 8 && data(sub, id, payload, length);
    case FT_EOF: return length == 8 && input_end(sub, id, payload);
    case FT_ACK: return length == 16 && acknowledge(sub, id, payload);
    case FT_RESET:
    case FT_FIN: {
      if (length) return false;
      struct slot *s = slot_by_id(id);
      if (s && type == FT_RESET) reset(s);
      if (s && type == FT_FIN) {
        if (fragments_id == id) fragments_id = 0;
        slot_free(s);
      }
      return true;
    }
    case FT_PING:
      if (length != 8) return false;
      send_pong(payload);
      return true;
    default: return false;
  }
}

void session_notify(void) {
  while (news) {
    news = false;
    for (size_t i = 0; i < SLOTS; i++) {
      struct slot *s = &slots[i];
      if (!s->id || s->state == RS_DONE || s->failed) continue;
      /* Before the verb has set its operations the news waits: slot_set looks again. */
      if (s->input_news && s->ops && s->state > RS_RECEIVING) {
        s->input_news = false;
        if (s->ops->input && s->input_open) s->ops->input(s);
      }
      for (int c = 1; c <= 2; c++) {
        uint8_t bit = (uint8_t)(1 << (c - 1));
        if (!(s->room_news & bit) || !s->ops) continue;
        s->room_news &= (uint8_t)~bit;
        if (s->ops->writable && s->out[c - 1].open) s->ops->writable(s, c);
      }
    }
  }
}
