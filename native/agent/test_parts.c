/*
 * Rings and fields at their edges. Built with: fields.c ring.c
 * Prints what is wrong and exits 1, or one line and 0.
 */
#include "agent.h"
#include <stdio.h>
#include <string.h>

static int wrong;
#define IS(what)                                                                      \
  do {                                                                                \
    if (!(what)) {                                                                    \
      fprintf(stderr, "test_parts: line %d: %s is not so\n", __LINE__, #what);        \
      wrong = 1;                                                                      \
    }                                                                                 \
  } while (0)

static void rings(void) {
  uint8_t memory[8];
  const uint8_t *at = NULL;
  struct ring r = {.bytes = memory, .capacity = sizeof memory};
  IS(ring_space(&r) == 8);
  IS(ring_peek(&r, 0, &at) == 0);
  IS(ring_write(&r, "abcdefghij", 10) == 8);
  IS(ring_write(&r, "x", 1) == 0);
  IS(ring_peek(&r, 3, &at) == 5 && !memcmp(at, "defgh", 5));
  ring_forget(&r, 5);
  IS(ring_space(&r) == 5);
  IS(ring_peek(&r, 4, &at) == 0);
  IS(ring_write(&r, "ijk", 3) == 3); /* goes round */
  IS(ring_peek(&r, 6, &at) == 2 && !memcmp(at, "gh", 2));
  IS(ring_peek(&r, 8, &at) == 3 && !memcmp(at, "ijk", 3));
  ring_forget(&r, 2);                /* never back */
  IS(r.first == 5);
  ring_make_room(&r, 4);
  IS(r.first == 7 && ring_space(&r) == 4);
  ring_make_room(&r, 100);
  IS(r.first == r.end && ring_space(&r) == 8);
  ring_forget(&r, 1000); /* never beyond the end */
  IS(r.first == 11 && r.end == 11);
}

static void built_fields(void) {
  static struct out o;
  char text[8];
  struct field x;
  out_bytes(&o, F_PATH, "/tmp", 4);
  out_u32(&o, F_MODE, 0x01020304);
  out_u64(&o, F_OFFSET, UINT64_C(0x0102030405060708));
  struct fields f = {.data = o.bytes, .size = o.size};
  IS(!o.overflow && fields_valid(&f));
  IS(fields_u32(&f, F_MODE, 7) == 0x01020304);
  IS(fields_u32(&f, F_UID, 7) == 7);
  IS(fields_u64(&f, F_OFFSET, 7) == UINT64_C(0x0102030405060708));
  IS(fields_string(&f, F_PATH, text, 5) == ST_OK && !strcmp(text, "/tmp"));
  IS(fields_string(&f, F_PATH, text, 4) == ST_TOO_LONG);
  IS(fields_string(&f, F_CWD, text, 8) == ST_INVALID);
  IS(!fields_find(&f, F_CWD, &x));
  for (size_t cut = 1; cut < o.size; cut++) { /* every cut but those between fields is found */
    struct fields part = {.data = o.bytes, .size = cut};
    IS(fields_valid(&part) == (cut == 12 || cut == 24));
  }
  out_bytes(&o, F_NAME, "a\0b", 3);
  f.size = o.size;
  IS(fields_string(&f, F_NAME, text, 8) == ST_INVALID);
  o.bytes[2] = 1; /* the reserved bytes */
  IS(!fields_valid(&f));
  o.bytes[2] = 0;
  o.bytes[0] = F_LANGUAGE + 1;
  IS(!fields_valid(&f));
  o.bytes[0] = F_MODE; /* 4 bytes, as it happens */
  IS(fields_valid(&f));
  o.bytes[0] = F_OFFSET;
  IS(!fields_valid(&f));
  memset(o.bytes + 4, 0xff, 4); /* a length that would run over everything */
  IS(!fields_valid(&f));
}

static void full(void) {
  static struct out o;
  static uint8_t big[FK_MAX_RESPONSE];
  out_bytes(&o, F_NAME, big, FK_MAX_RESPONSE - 16);
  IS(!o.overflow && o.size == FK_MAX_RESPONSE - 8);
  out_bytes(&o, F_NAME, big, 0);
  IS(o.overflow && o.size == FK_MAX_RESPONSE - 8);
  o = (struct out){0};
  out_bytes(&o, F_NAME, big, FK_MAX_RESPONSE - 15);
  IS(o.overflow && o.size == 0);
  out_u32(&o, F_MODE, 1); /* once it did not fit, nothing more is put in: no answer with a hole */
  IS(o.overflow && o.size == 0);
}

int main(void) {
  rings();
  built_fields();
  full();
  if (!wrong) puts("test_parts: rings and fields are right");
  return wrong;
}
