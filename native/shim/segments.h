/* What ought to lie where in a VMM's address space. */
#pragma once
#include "shim.h"

struct segment {
  uint64_t start, end, offset, inode; /* inode 0: anonymous memory */
  uint32_t major, minor;
};
struct segments {
  struct segment *list; /* in order, apart */
  size_t count, room;
};
/* Puts one segment over those before. -1: no memory. */
int segments_paint(struct segments *s, struct segment new);
/* Compares with /proc/PID/maps: every byte of every segment must be as painted, private and writable. */
int segments_verify(const struct segments *s, pid_t pid, struct fault *f);
void segments_free(struct segments *s);
