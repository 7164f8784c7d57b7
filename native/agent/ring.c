/* A byte ring addressed by absolute offset: byte `n` of the stream lies at `n % capacity` while first <= n < end. */
#include "agent.h"
#include <string.h>

size_t ring_space(const struct ring *r) { return r->capacity - (size_t)(r->end - r->first); }

size_t ring_write(struct ring *r, const void *bytes, size_t length) {
  size_t space = ring_space(r);
  if (length > space) length = space;
  if (!length) return 0;
  size_t at = (size_t)(r->end % r->capacity);
  size_t together = r->capacity - at < length ? r->capacity - at : length;
  memcpy(r->bytes + at, bytes, together);
  if (together < length) memcpy(r->bytes, (const uint8_t *)bytes + together, length - together);
  r->end += length;
  return length;
}

void ring_make_room(struct ring *r, size_t length) {
  if (length > r->capacity) length = r->capacity;
  size_t space = ring_space(r);
  if (space < length) r->first += length - space;
}

size_t ring_peek(const struct ring *r, uint64_t offset, const uint8_t **bytes) {
  if (offset < r->first || offset >= r->end) return 0;
  size_t at = (size_t)(offset % r->capacity);
  uint64_t left = r->end - offset;
  *bytes = r->bytes + at;
  return left < r->capacity - at ? (size_t)left : r->capacity - at;
}

void ring_forget(struct ring *r, uint64_t offset) {
  if (offset > r->end) offset = r->end;
  if (offset > r->first) r->first = offset;
}
