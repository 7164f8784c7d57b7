/* Slots that follow a process: its starter and attachers. */
#include "process.h"

static struct reader readers[FK_MAX_REQUESTS];

static void reader_input(struct slot *s) {
  struct reader *r = slot_context(s);
  if (r->opened)
    input_news(r);
}

static void reader_writable(struct slot *s, int channel) {
  struct reader *r = slot_context(s);
  (void)channel;
  if (r->process->lossless == r)
    output_resume(r->process);
}

/* The host wants no more of it: the process goes on without this reader. */
static void reader_reset(struct slot *s) {
  struct reader *r = slot_context(s);
  r->reset = true;
  if (r->opened && !r->done)
    reader_done(r, ST_CANCELLED);
}

static void reader_release(struct slot *s) {
  reader_drop(slot_context(s));
}

static const struct slot_ops reader_ops = {
  .input = reader_input,
  .writable = reader_writable,
  .reset = reader_reset,
  .release = reader_release,
};

struct reader *reader_new(struct slot *s, struct process *p) {
  for (size_t i = 0; i < FK_MAX_REQUESTS; i++) {
    struct reader *r = &readers[i];
    if (r->slot)
      continue;
    *r = (struct reader){ .slot = s, .process = p, .next = p->readers };
    p->readers = r;
    slot_set(s, &reader_ops, r);
    return r;
  }
  return NULL; /* cannot be: there are as many as requests */
}

void reader_open(struct reader *r, bool input, bool from_now) {
  struct process *p = r->process;
  slot_open(r->slot, input, p->outputs);
  for (int i = 0; i < p->outputs; i++) {
    struct ring *ring = &p->output[i].ring;
    slot_use_ring(r->slot, i + 1, ring, from_now ? ring->end : ring->first);
  }
  r->opened = true;
}

void reader_catch_up(struct reader *r) {
  struct process *p = r->process;
  for (int i = 0; i < p->outputs && !r->done; i++)
    if (p->output[i].ended)
      slot_end(r->slot, i + 1);
  if (p->state == P_ENDED && !r->done)
    reader_done(r, ST_OK);
}

static void put_u32(uint8_t *to, uint32_t value) {
  for (int i = 0; i < 4; i++)
    to[i] = (uint8_t)(value >> (8 * i));
}

static void put_u64(uint8_t *to, uint64_t value) {
  put_u32(to, (uint32_t)value);
  put_u32(to + 4, (uint32_t)(value >> 32));
}

void reader_done(struct reader *r, int status) {
  static struct out o;
  struct process *p = r->process;
  struct slot *s = r->slot;
  uint8_t bytes[48];
  if (r->done || !r->opened)
    return;
  if (status == ST_CANCELLED) {
    for (int i = 0; i < p->outputs; i++) {
      slot_use_ring(s, i + 1, NULL, 0);
      slot_end(s, i + 1);
    }
    slot_set(s, NULL, NULL);
    reader_drop(r);
    slot_done(s, status, 0, NULL);
    return;
  }
  r->done = true;
  o.size = 0;
  o.overflow = false;
  for (int i = 0; i < 4; i++)
    put_u32(bytes + 4 * i, p->outcome[i]);
  out_bytes(&o, F_OUTCOME, bytes, 16);
  for (int i = 0; i < 4; i++)
    put_u64(bytes + 8 * i, p->usage[i]);
  for (int i = 0; i < 2; i++)
    put_u64(bytes + 32 + 8 * i, p->output[i].ring.end);
  out_bytes(&o, F_USAGE, bytes, sizeof bytes);
  slot_done(s, status, 0, &o);
}

void reader_drop(struct reader *r) {
  struct process *p = r->process;
  for (struct reader **at = &p->readers; *at; at = &(*at)->next)
    if (*at == r) {
      *at = r->next;
      break;
    }
  if (p->starter == r)
    p->starter = NULL;
  if (p->lossless == r) {
    p->lossless = NULL;
    output_resume(p);
  }
  input_leave(p, r);
  slot_set(r->slot, NULL, NULL);
  r->slot = NULL;
  process_forget(p);
}
