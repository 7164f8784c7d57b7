#pragma once
#include "shim.h"

/* Copies the extents of kind copy; all extents when `g->mapped` is false. Its files are open and mapped. */
int graft_copy(const struct graft *g, struct fault *f);
/* Where an extent lies in the VMM; 0 when it is not all inside guest RAM. */
uint64_t graft_address(const struct graft *g, const struct graft_extent *e);
