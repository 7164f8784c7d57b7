/* Lists of extents: one over another. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

static struct layer_extent without_first(struct layer_extent e, uint32_t pages) {
  e.guest_page += pages, e.pages -= pages;
  if (e.file_page != ALL_ZEROS) e.file_page += pages;
  return e;
}

int layer_overlay(struct layer *l, const struct layer *above, struct fault *f) {
  size_t room = l->count + 2 * above->count, count = 0, next = 0;
  if (above->count == 0) return 0;
  struct layer_extent *merged = malloc(room * sizeof *merged), *below = l->extents;
  if (!merged) return fail(f, ENOMEM, "no memory for %zu extents", room);
  for (size_t i = 0; i < above->count; i++) {
    const struct layer_extent *a = &above->extents[i];
    uint32_t end = a->guest_page + a->pages;
    while (next < l->count && below[next].guest_page + below[next].pages <= a->guest_page) merged[count++] = below[next++];
    if (next < l->count && below[next].guest_page < a->guest_page) {
      merged[count] = below[next];
      merged[count++].pages = a->guest_page - below[next].guest_page;
    }
    merged[count++] = *a;
    while (next < l->count && below[next].guest_page + below[next].pages <= end) next++;
    if (next < l->count && below[next].guest_page < end) below[next] = without_first(below[next], end - below[next].guest_page);
  }
  while (next < l->count) merged[count++] = below[next++];
  free(l->extents);
  l->extents = merged, l->count = count, l->room = room;
  return 0;
}

void layer_free(struct layer *l) {
  free(l->extents);
  memset(l, 0, sizeof *l);
}
