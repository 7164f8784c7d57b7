/* /proc/PID/maps: where guest RAM is, and proof of what a graft has done. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

static bool parse_line(char *line, struct mapping *m) {
  int name = 0;
  unsigned long long start, end, offset, inode;
  if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu %n", &start, &end, m->perms, &offset, &m->major, &m->minor, &inode, &name) < 7)
    return false;
  m->start = start, m->end = end, m->offset = offset, m->inode = inode;
  snprintf(m->name, sizeof m->name, "%s", line + name);
  return true;
}

int maps_each(pid_t pid, bool (*each)(const struct mapping *m, void *arg), void *arg, struct fault *f) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE *file = fopen(path, "re");
  if (!file) return fail(f, errno, "open %s", path);
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  int result = 0;
  struct mapping m;
  while ((length = getline(&line, &room, file)) > 0) {
    if (line[length - 1] == '\n') line[length - 1] = 0;
    if (!parse_line(line, &m)) {
      result = fail(f, EPROTO, "%s has a line that is not understood: %.100s", path, line);
      break;
    }
    if (!each(&m, arg)) break;
  }
  if (result == 0 && ferror(file)) result = fail(f, EIO, "read %s", path);
  free(line);
  fclose(file);
  return result;
}

struct search {
  const char *name;
  struct ram_range *into;
  int room, count;
};

static bool see(const struct mapping *m, void *arg) {
  struct search *s = arg;
  if (m->perms[0] != 'r' || !strstr(m->name, s->name)) return true;
  struct ram_range *last = s->count ? &s->into[s->count - 1] : NULL;
  if (last && last->address + last->length == m->start && last->guest_offset + last->length == m->offset) {
    last->length += m->end - m->start;
    return true;
  }
  if (s->count == s->room) return false;
  s->into[s->count++] = (struct ram_range){m->offset, m->end - m->start, m->start};
  return true;
}

static int by_offset(const void *a, const void *b) {
  const struct ram_range *x = a, *y = b;
  return x->guest_offset < y->guest_offset ? -1 : x->guest_offset > y->guest_offset;
}

int find_ram(pid_t pid, const char *name, struct ram_range *into, int room, struct fault *f) {
  struct search s = {name, into, room, 0};
  if (maps_each(pid, see, &s, f)) return -1;
  if (s.count == 0) return fail(f, ENOENT, "process %d has no mapping whose name contains \"%s\"", pid, name);
  qsort(into, (size_t)s.count, sizeof *into, by_offset);
  return s.count;
}
