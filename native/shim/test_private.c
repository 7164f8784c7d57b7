/*
 * Private pages as both ways of finding them tell of them. Prints one line; exits 0 when all is right.
 *
 * Built with: private.c base.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "private.h"

#define PAGE 4096
#define PAGES 4096

static int wrong;
static void expect(bool right, const char *what) {
  if (right) return;
  printf("FAILED: %s\n", what);
  wrong = 1;
}

/* One character a page: '#' where it is told of. */
static int walk(pid_t pid, const char *memory, bool by_entries, char seen[PAGES], struct fault *f) {
  struct private_walk w;
  struct span s;
  int pagemap = private_open(pid, f), n;
  uint64_t start = (uintptr_t)memory, last = 0;
  memset(seen, '.', PAGES);
  if (pagemap < 0) return -1;
  private_begin(&w, pagemap, start, start + PAGES * PAGE);
  w.by_entries = w.by_entries || by_entries;
  while ((n = private_next(&w, &s, f)) > 0) {
    expect(s.start >= last && s.end > s.start && s.start >= start && s.end <= start + PAGES * PAGE, "runs are in order and within the range");
    for (uint64_t at = s.start; at < s.end; at += PAGE) seen[(at - start) / PAGE] = '#';
    last = s.end;
  }
  close(pagemap);
  return n;
}

static char *map_file(void) {
  char name[] = "/tmp/forkd-private-XXXXXX";
  int fd = mkstemp(name);
  if (fd < 0 || unlink(name) || ftruncate(fd, PAGES * PAGE)) exit(2);
  char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) exit(2);
  close(fd);
  return memory;
}

int main(void) {
  struct fault f = {0, ""};
  static char want[PAGES], seen[PAGES];
  char *memory = map_file();
  memset(want, '.', PAGES);
  volatile char sum = 0;
  for (int page = 0; page < 512; page++) sum = (char)(sum + memory[page * PAGE]); /* read: they are the file's */
  /* Every second page, so that no buffer holds all runs; then one long run. */
  for (int page = 0; page < 2048; page += 2) memory[page * PAGE] = 1, want[page] = '#';
  for (int page = 3000; page < 3500; page++) memory[page * PAGE] = 1, want[page] = '#';
  memory[(PAGES - 1) * PAGE] = 1, want[PAGES - 1] = '#';
  for (int by_entries = 0; by_entries < 2; by_entries++) {
    const char *way = by_entries ? "by entries" : "by a scan";
    expect(walk(getpid(), memory, by_entries, seen, &f) == 0 && !memcmp(seen, want, PAGES), way);
    pid_t child = fork();
    if (child == 0)
      for (;;) pause();
    expect(walk(child, memory, by_entries, seen, &f) == 0 && !memcmp(seen, want, PAGES), "of a clone");
    struct private_walk w;
    struct span s;
    int pagemap = private_open(child, &f);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    private_begin(&w, pagemap, (uintptr_t)memory, (uintptr_t)memory + PAGES * PAGE);
    w.by_entries = w.by_entries || by_entries;
    expect(private_next(&w, &s, &f) < 0 && f.code == ESRCH, "of a process that is gone nothing is told");
    close(pagemap);
  }
  if (!wrong) printf("private pages: two ways, the same pages\n");
  return wrong;
}
