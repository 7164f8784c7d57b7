#pragma once
#include <stdatomic.h>

#include "shim.h"

/*
 * Makes `to` (absolute, not there yet) a copy of the disk `from` of the run directory: shared blocks where the file system can, else its data
 * without its holes. Done by `due_us`, or failed; nothing is left of a failure.
 */
int disk_copy(const char *from, const char *to, int64_t due_us, atomic_bool *cancel, struct fault *f);
