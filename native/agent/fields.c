/* The fields of a payload: tag, length, bytes. Nothing here believes a length that it has not compared with what is left. */
#include "agent.h"
#include <string.h>

#define FIELD_HEAD 8
/* RES and DONE begin with 8 bytes of status, which count. */
#define MAX_FIELDS (FK_MAX_RESPONSE - 8)

static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t get32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) | (uint64_t)get32(p + 4) << 32; }

bool fields_next(const struct fields *f, size_t *at, struct field *out) {
  if (*at >= f->size || f->size - *at < FIELD_HEAD) return false;
  const uint8_t *p = f->data + *at;
  uint32_t length = get32(p + 4);
  if (length > f->size - *at - FIELD_HEAD) return false;
  *out = (struct field){.tag = get16(p), .length = length, .bytes = p + FIELD_HEAD};
  *at += FIELD_HEAD + (size_t)length;
  return true;
}

/* Lengths that a tag may have. Tags that are not listed are byte strings of any length. */
static void allowed_length(uint16_t tag, uint32_t *least, uint32_t *most) {
  *least = 0;
  *most = UINT32_MAX;
  switch (tag) {
    case F_GENERATION: *least = *most = 16; break;
    case F_ENTROPY: *least = 32; *most = 512; break;
    case F_MACHINE_ID: *least = *most = 32; break;
    case F_HOOK: *least = 8; break;
    case F_INFO: *least = *most = 48; break;
    case F_OUTCOME: *least = *most = 16; break;
    case F_USAGE: *least = *most = 48; break;
    case F_METRICS: *least = *most = 184; break;
    case F_WALL_CLOCK: case F_MONOTONIC: case F_TOOK: case F_OFFSET: case F_LENGTH: case F_MTIME: case F_AGE:
      *least = *most = 8;
      break;
    case F_THAW: case F_PROTOCOL: case F_ROWS: case F_COLS: case F_STDIN: case F_TIMEOUT: case F_ROLE: case F_HANDLE:
    case F_PID: case F_PTY: case F_FROM: case F_LOSSLESS: case F_SIGNAL: case F_ALL: case F_CANCEL: case F_MODE:
    case F_UID: case F_GID: case F_MKDIRS: case F_FOLLOW: case F_PARENTS: case F_REPLACE: case F_RECURSIVE:
    case F_FORCE: case F_EVENT: case F_DIRECTORY: case F_COOKIE: case F_PORT: case F_STATE:
      *least = *most = 4;
      break;
    default: break;
  }
}

bool fields_valid(const struct fields *f) {
  size_t at = 0;
  struct field x;
  while (at < f->size) {
    size_t start = at;
    if (!fields_next(f, &at, &x)) return false;
    if (get16(f->data + start + 2) != 0) return false;
    if (x.tag < F_MESSAGE || x.tag > F_LANGUAGE) return false;
    uint32_t least, most;
    allowed_length(x.tag, &least, &most);
    if (x.length < least || x.length > most) return false;
  }
  return true;
}

bool fields_find(const struct fields *f, uint16_t tag, struct field *out) {
  size_t at = 0;
  while (fields_next(f, &at, out))
    if (out->tag == tag) return true;
  return false;
}

uint32_t fields_u32(const struct fields *f, uint16_t tag, uint32_t otherwise) {
  struct field x;
  return fields_find(f, tag, &x) && x.length == 4 ? get32(x.bytes) : otherwise;
}

uint64_t fields_u64(const struct fields *f, uint16_t tag, uint64_t otherwise) {
  struct field x;
  return fields_find(f, tag, &x) && x.length == 8 ? get64(x.bytes) : otherwise;
}

int fields_string(const struct fields *f, uint16_t tag, char *to, size_t capacity) {
  struct field x;
  if (!fields_find(f, tag, &x)) return ST_INVALID;
  if (x.length && memchr(x.bytes, 0, x.length)) return ST_INVALID;
  if (x.length >= capacity) return ST_TOO_LONG;
  if (x.length) memcpy(to, x.bytes, x.length);
  to[x.length] = 0;
  return ST_OK;
}

void out_bytes(struct out *o, uint16_t tag, const void *bytes, size_t length) {
  if (o->overflow || o->size > MAX_FIELDS || MAX_FIELDS - o->size < FIELD_HEAD ||
      length > MAX_FIELDS - o->size - FIELD_HEAD) {
    o->overflow = true;
    return;
  }
  uint8_t *p = o->bytes + o->size;
  p[0] = (uint8_t)tag;
  p[1] = (uint8_t)(tag >> 8);
  p[2] = p[3] = 0;
  for (int i = 0; i < 4; i++) p[4 + i] = (uint8_t)(length >> (8 * i));
  if (length) memcpy(p + FIELD_HEAD, bytes, length);
  o->size += FIELD_HEAD + length;
}

void out_u32(struct out *o, uint16_t tag, uint32_t value) {
  uint8_t b[4];
  for (int i = 0; i < 4; i++) b[i] = (uint8_t)(value >> (8 * i));
  out_bytes(o, tag, b, sizeof b);
}

void out_u64(struct out *o, uint16_t tag, uint64_t value) {
  uint8_t b[8];
  for (int i = 0; i < 8; i++) b[i] = (uint8_t)(value >> (8 * i));
  out_bytes(o, tag, b, sizeof b);
}
