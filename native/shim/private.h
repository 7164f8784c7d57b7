/* Which pages a process has for itself: copied or made by it, so that no file and no other process shows them. */
#pragma once
#include "shim.h"

struct span {
  uint64_t start, end; /* addresses */
};
/*
 * Those; or all pages, of files too, without a userfaultfd's write protection (the kernel need not look at each page for that: a tenth of the
 * time); or the same, which are protected in the same step.
 */
enum private_kind { PRIVATE, WRITTEN, WRITTEN_PROTECT };
/* A walk over a range of addresses. */
struct private_walk {
  int pagemap;
  enum private_kind kind; /* PRIVATE, unless changed before the first step */
  bool by_entries; /* the kernel has no PAGEMAP_SCAN */
  uint64_t at, end; /* not looked at yet */
  struct span found[256];
  int count, next;
};
/* The pagemap of a process, to be closed; -1. */
int private_open(pid_t pid, struct fault *f);
void private_begin(struct private_walk *w, int pagemap, uint64_t start, uint64_t end);
/* The next run of pages, in rising order, apart: 1; 0 when there is none; -1 on failure: of a process that is gone nothing is told. */
int private_next(struct private_walk *w, struct span *s, struct fault *f);
