/* Which pages of guest RAM a VMM may have written since a capture of it. */
#pragma once
#include "inject.h"

/*
 * While the main thread is borrowed: from now on writes are noticed, by the kernel alone, until this process ends. Where the kernel cannot
 * (before Linux 6.7), nothing is noticed, and that is no failure.
 */
int written_begin(struct inject *in, const struct graft *g);
/* Whether they are. */
bool written_noticed(void);
/* Adds what was written until now; what is written from now on is added by the next call of either. Any problem ends the noticing. */
void written_take(const struct graft *g);
/* The same, but what it has added the next call adds again: takes nothing from the VMM's speed. */
void written_look(const struct graft *g);
/*
 * By guest page, a bit: set where the page may have another content than in the capture `link`. Of pages that the VMM has for itself only. NULL
 * where nobody knows.
 */
const uint8_t *written_since(const char *link);
/* What the last call of either has found, as such bits, and how many pages; NULL where nothing is noticed. */
const uint8_t *written_lately(uint64_t *pages);
/* A capture has become `link`: what was added until now is in it. */
void written_linked(const char *link);
void written_forget(void);
