/* Requests of the session as verbs see them: answer, channels, end. */
#include "session.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define SLOT_MEMORY (FK_INITIAL_WINDOW + 2 * SLOT_RING)
/* A slot that used less than this of its rings keeps the pages for the next request. */
#define KEEP_BYTES 65536

struct slot slots[SLOTS];
uint8_t slot_res[SLOTS][FK_MAX_RESPONSE];
uint8_t slot_done_payload[SLOTS][FK_MAX_RESPONSE];
static uint8_t *memory; /* SLOT_MEMORY a slot; pages exist once touched */

const uint8_t *find_magic(const uint8_t *bytes, size_t length) {
  static const uint8_t magic[16] = FK_SYNC_MAGIC;
  return length < sizeof magic ? NULL : memmem(bytes, length, magic, sizeof magic);
}

void slots_init(void) {
  memory = mmap(NULL, (size_t)SLOTS * SLOT_MEMORY, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    log_line("cannot reserve %zu bytes of address space for requests: raise the limit of virtual memory",
             (size_t)SLOTS * SLOT_MEMORY);
    exit(1);
  }
}

struct slot *slot_of(uint32_t index) { return index < SLOTS ? &slots[index] : NULL; }
uint32_t slot_index(const struct slot *s) { return (uint32_t)(s - slots); }

struct slot *slot_by_id(uint32_t id) {
  if (id)
    for (size_t i = 0; i < SLOTS; i++)
      if (slots[i].id == id) return &slots[i];
  return NULL;
}

struct slot *slot_take(uint32_t id, bool refused) {
  size_t live = 0;
  struct slot *s = NULL;
  for (size_t i = 0; i < SLOTS; i++) {
    if (!slots[i].id && !s) s = &slots[i];
    if (slots[i].id && !slots[i].refused) live++;
  }
  if (!s || (!refused && live >= FK_MAX_REQUESTS)) return NULL;
  uint8_t *m = memory + (size_t)slot_index(s) * SLOT_MEMORY;
  *s = (struct slot){.id = id, .state = RS_RECEIVING, .refused = refused, .input_open = true};
  s->in = (struct ring){.bytes = m, .capacity = FK_INITIAL_WINDOW};
  s->told_limit = FK_INITIAL_WINDOW;
  for (int i = 0; i < 2; i++) {
    s->out[i].own = (struct ring){.bytes = m + FK_INITIAL_WINDOW + i * SLOT_RING, .capacity = SLOT_RING};
    s->out[i].limit = FK_INITIAL_WINDOW;
  }
  return s;
}

void give_back(void *pages, size_t length) {
  /* Locked pages need the newer call; where it is unknown the pages just stay. */
  if (madvise(pages, length, MADV_DONTNEED_LOCKED)) (void)madvise(pages, length, MADV_DONTNEED);
}

void slot_free(struct slot *s) {
  const struct slot_ops *ops = s->ops;
  if (ops && ops->release) ops->release(s);
  if (s->in.end > KEEP_BYTES || s->out[0].own.end > KEEP_BYTES || s->out[1].own.end > KEEP_BYTES) {
    give_back(memory + (size_t)slot_index(s) * SLOT_MEMORY, SLOT_MEMORY);
  }
  *s = (struct slot){0};
}

void slot_set(struct slot *s, const struct slot_ops *ops, void *context) {
  s->ops = ops;
  s->context = context;
  if (s->input_news) session_news();
}

void *slot_context(const struct slot *s) { return s->context; }

/* Keeps an answer. The host takes SYNC's magic for SYNC wherever it stands, so it cannot stand here. */
static uint16_t keep(uint8_t *to, int status, int err, const struct out *o) {
  memset(to, 0, 8);
  put16(to, (uint16_t)status);
  put16(to + 2, (uint16_t)err);
  size_t size = 8;
  if (o) {
    memcpy(to + size, o->bytes, o->size);
    size += o->size;
  }
  for (const uint8_t *p; (p = find_magic(to, size));) to[p - to] = '?';
  return (uint16_t)size;
}

static void answer(struct slot *s, int status, int err, const struct out *o) {
  if (s->state > RS_RUNNING) return; /* answered already */
  s->res_size = keep(slot_res[slot_index(s)], status, err, o);
  s->state = RS_ANSWERED;
  s->res_due = true;
  s->failed = status != ST_OK;
  send_mark(s);
  conn_kick();
}

void slot_reply(struct slot *s, const struct out *o) {
  if (o && o->overflow) {
    slot_fail(s, ST_TOO_LARGE, 0, "the answer is longer than %d bytes", FK_MAX_RESPONSE);
    return;
  }
  if (!s->opened) s->input_open = false; /* what came before the answer was for nobody */
  answer(s, ST_OK, 0, o);
  if (s->resetting && s->opened) slot_tell_reset(s);
}

void slot_tell_reset(struct slot *s) {
  if (s->reset_told || s->state == RS_DONE) return;
  if (s->ops && s->ops->reset) {
    s->reset_told = true;
    s->ops->reset(s);
  } else if (s->state == RS_ANSWERED) {
    s->reset_told = true;
    slot_done(s, ST_CANCELLED, 0, NULL);
  }
}

void slot_fail(struct slot *s, int status, int err, const char *format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (n < 0) n = 0;
  if (n >= (int)sizeof text) n = sizeof text - 1;
  static struct out o; /* the main thread's; too large for its stack to be touched each time */
  o.size = 0;
  o.overflow = false;
  out_bytes(&o, F_MESSAGE, text, (size_t)n);
  for (int i = 0; i < 2; i++) s->out[i].open = false;
  s->input_open = false;
  answer(s, status ? status : ST_IO, err, &o);
}

void slot_open(struct slot *s, bool input, int outputs) {
  s->opened = true;
  s->input_open = input;
  for (int i = 0; i < 2; i++) {
    struct channel *c = &s->out[i];
    c->open = i < outputs;
    if (c->open && !c->ring) c->ring = &c->own;
  }
}

size_t slot_input(struct slot *s, const uint8_t **bytes) {
  return s->input_open ? ring_peek(&s->in, s->in.first, bytes) : 0;
}

void slot_consume(struct slot *s, size_t length) {
  ring_forget(&s->in, s->in.first + length);
  send_mark(s);
  conn_kick();
}

bool slot_input_ended(const struct slot *s) { return s->input_eof && s->in.first == s->in.end; }

size_t slot_write(struct slot *s, int channel, const void *bytes, size_t length) {
  struct channel *c = &s->out[channel - 1];
  if (!c->open || c->ended || c->ring != &c->own) return 0;
  size_t n = ring_write(&c->own, bytes, length);
  if (n) slot_kick(s);
  return n;
}

size_t slot_space(const struct slot *s, int channel) {
  const struct channel *c = &s->out[channel - 1];
  return c->open && !c->ended && c->ring == &c->own ? ring_space(&c->own) : 0;
}

void slot_end(struct slot *s, int channel) {
  struct channel *c = &s->out[channel - 1];
  if (!c->open || c->ended) return;
  c->ended = true;
  c->end = c->ring ? c->ring->end : c->sent;
  if (c->end < c->start) c->end = c->start;
  slot_kick(s);
}

void slot_use_ring(struct slot *s, int channel, struct ring *r, uint64_t offset) {
  struct channel *c = &s->out[channel - 1];
  if (!r) { /* what was sent is all there will be; what was promised beyond becomes a gap */
    if (!c->ended) c->end = c->high > c->start ? c->high : c->start;
    c->ended = true;
  } else {
    c->start = offset;
  }
  c->ring = r;
  slot_kick(s);
}

uint64_t slot_acknowledged(const struct slot *s, int channel) {
  const struct channel *c = &s->out[channel - 1];
  return c->acked > c->start ? c->acked : c->start;
}

void slot_kick(struct slot *s) {
  send_mark(s);
  conn_kick();
}

void slot_done(struct slot *s, int status, int err, const struct out *o) {
  if (s->state <= RS_RUNNING) {
    slot_fail(s, status ? status : ST_CANCELLED, err, "ended before it was answered");
    return;
  }
  if (s->state == RS_DONE || s->failed || !s->opened) return;
  slot_end(s, 1);
  slot_end(s, 2);
  s->done_size = keep(slot_done_payload[slot_index(s)], status, err, o && !o->overflow ? o : NULL);
  s->state = RS_DONE;
  s->input_open = false;
  slot_kick(s);
}
