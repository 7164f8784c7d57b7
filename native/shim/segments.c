/* Paints segments over one another, and compares the picture with /proc/PID/maps. */
#include "segments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* First segment that ends after `at`. */
static size_t find(const struct segments *s, uint64_t at) {
  size_t low = 0, high = s->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (s->list[middle].end <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

static struct segment cut(struct segment s, uint64_t start, uint64_t end) {
  if (s.inode) s.offset += start - s.start;
  s.start = start, s.end = end;
  return s;
}

int segments_paint(struct segments *s, struct segment new) {
  if (s->count + 2 > s->room) {
    size_t room = s->room ? s->room * 2 : 64;
    struct segment *list = realloc(s->list, room * sizeof *list);
    if (!list) return -1;
    s->list = list, s->room = room;
  }
  size_t first = find(s, new.start), after = first;
  while (after < s->count && s->list[after].start < new.end) after++;
  struct segment put[3];
  size_t puts = 0;
  if (after > first && s->list[first].start < new.start) put[puts++] = cut(s->list[first], s->list[first].start, new.start);
  put[puts++] = new;
  if (after > first && s->list[after - 1].end > new.end) put[puts++] = cut(s->list[after - 1], new.end, s->list[after - 1].end);
  memmove(s->list + first + puts, s->list + after, (s->count - after) * sizeof *s->list);
  memcpy(s->list + first, put, puts * sizeof *put);
  s->count += puts - (after - first);
  return 0;
}

struct comparison {
  const struct segments *want;
  size_t next;
  uint64_t at; /* seen so far of segment `next` */
  const char *wrong;
  struct mapping found;
};

static const char *differs(const struct segment *want, uint64_t at, const struct mapping *m) {
  if (strcmp(m->perms, "rw-p")) return "permissions";
  if (m->inode != want->inode) return "file";
  if (want->inode == 0) return NULL;
  if (m->major != want->major || m->minor != want->minor) return "file system";
  return m->offset + (at - m->start) == want->offset + (at - want->start) ? NULL : "offset";
}

static bool compare(const struct mapping *m, void *arg) {
  struct comparison *c = arg;
  while (c->next < c->want->count) {
    const struct segment *want = &c->want->list[c->next];
    uint64_t at = c->at > want->start ? c->at : want->start;
    if (m->end <= at) return true;
    c->wrong = m->start > at ? "a gap" : differs(want, at, m);
    if (c->wrong) {
      c->found = *m;
      return false;
    }
    if (m->end < want->end) {
      c->at = m->end;
      return true;
    }
    c->next++;
  }
  return false;
}

int segments_verify(const struct segments *s, pid_t pid, struct fault *f) {
  struct comparison c = {.want = s};
  if (maps_each(pid, compare, &c, f)) return -1;
  if (c.wrong)
    return fail(f, EIO, "after the graft the mapping at %llx shows another %s than asked for (%.100s)", (unsigned long long)c.found.start, c.wrong, c.found.name);
  if (c.next < s->count) return fail(f, EIO, "after the graft the mapping at %llx is missing", (unsigned long long)s->list[c.next].start);
  return 0;
}

void segments_free(struct segments *s) { free(s->list); }
