/* What is read of a frozen memory, and written as a layer. */
#pragma once
#include <stdatomic.h>

#include "shim.h"

#define ALL_ZEROS UINT32_MAX
struct layer_extent {
  uint32_t guest_page, pages, file_page; /* ALL_ZEROS: no room in the file */
};
struct layer {
  struct layer_extent *extents;
  size_t count, room;
  uint64_t bytes, compared, unchanged; /* bytes in the file; pages looked at; pages left out */
};
struct layer_source {
  pid_t pid; /* the clone, or the paused VMM */
  const struct graft *below; /* its files are open and mapped */
  uint32_t origin;
  const uint8_t *written; /* by guest page, a bit: clear where the source shows what is below, if it has the page for itself; NULL: nobody knows */
  atomic_bool *cancel;
  int64_t due_us; /* by then it is done, or has failed; 0: it may take its time */
};
/* Writes all pages that differ from what is below into `fd`, from its start. Any short read is a failure. */
int layer_write(const struct layer_source *s, int fd, struct layer *l, struct fault *f);
/* Puts pages into a layer once more, as they are now: those alone whose bit in `written` is set. */
int layer_rewrite(const struct layer_source *s, int fd, struct layer *l, struct fault *f);
/* Lets a layer show what another one, above it and in the same file, has. */
int layer_overlay(struct layer *l, const struct layer *above, struct fault *f);
void layer_free(struct layer *l);
