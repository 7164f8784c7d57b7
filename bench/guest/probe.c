/*
 * Runs in a guest, for measurements of branches: one static program.
 *
 *   probe stall SECONDS            a writer at full speed, and beside it a reader of the clock, a thousand times a second.
 *                                  Prints the longest time between two looks, in microseconds, once for the first half and once for the second.
 *   probe scatter FILE PAGES SEED  gives every fourth page of a file in memory other bytes here and there, PAGES of them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WRITTEN (16 << 20)
/* What is looked for is not what the two of them cost at their start: first runs of their code under emulation, and pages that are new. */
#define WARM_UP_US 500000

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Tells of each round in `rounds`. In the first the guest's kernel gives it its pages. */
static void write_for_ever(volatile unsigned *rounds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  volatile char *memory = mmap(NULL, WRITTEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) _exit(1);
  for (;; ++*rounds)
    for (size_t at = 0; at < WRITTEN; at += PAGE) memory[at] = (char)*rounds;
}

static uint64_t longest_until(uint64_t end) {
  uint64_t longest = 0, last = now_us();
  while (last < end) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
    uint64_t now = now_us();
    if (now - last > longest) longest = now - last;
    last = now;
  }
  return longest;
}

static int stall(unsigned seconds) {
  volatile unsigned *rounds = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (rounds == MAP_FAILED) return perror("mmap"), 1;
  if (fork() == 0) write_for_ever(rounds);
  for (uint64_t begin = now_us(); *rounds == 0 || now_us() < begin + WARM_UP_US;) longest_until(now_us() + 10000);
  printf("ready\n");
  fflush(stdout);
  uint64_t begin = now_us(), half = seconds * 500000ull;
  printf("%llu\n", (unsigned long long)longest_until(begin + half));
  fflush(stdout);
  printf("%llu\n", (unsigned long long)longest_until(begin + 2 * half));
  return 0;
}

static int scatter(const char *path, size_t pages, uint64_t seed) {
  size_t length = pages * 4 * PAGE;
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)length)) return perror(path), 1;
  uint8_t *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return perror("mmap"), 1;
  for (size_t page = 0; page < pages; page++)
    for (size_t at = 0; at < PAGE; at += 512) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      memcpy(memory + page * 4 * PAGE + at, &seed, 8);
    }
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "stall")) return stall((unsigned)atoi(argv[2]));
  if (argc == 5 && !strcmp(argv[1], "scatter")) return scatter(argv[2], (size_t)atol(argv[3]), strtoull(argv[4], NULL, 10));
  fprintf(stderr, "usage: probe stall SECONDS | probe scatter FILE PAGES SEED\n");
  return 2;
}
