/* A large file, written block by block: a block is on the disk before its sum is written down, and the sum before the next block.
 *
 *   gibibyte write FILE SUMS BLOCKS
 *   gibibyte check FILE SUMS    reads what has a sum from the disk, not from memory; prints how many blocks that is, and each that is another
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK (4 << 20)
#define WORDS (BLOCK / 8)

static uint64_t *block;

static int broken(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

/* Every word of a file is another one. */
static void fill(uint64_t number) {
  uint64_t word = number * WORDS * 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < WORDS; i++) block[i] = word += 0x9e3779b97f4a7c15u;
}

/* Depends on the place of each word. */
static uint64_t sum(void) {
  uint64_t all = 0;
  for (size_t i = 0; i < WORDS; i++) all = (all << 1 | all >> 63) ^ block[i];
  return all;
}

static void write_all(const char *name, const char *sums_name, long blocks) {
  int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600), sums = open(sums_name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || sums < 0) broken("open");
  for (long at = 0; at < blocks; at++) {
    fill(at);
    uint64_t its = sum();
    if (write(file, block, BLOCK) != BLOCK || fdatasync(file)) broken(name);
    if (write(sums, &its, sizeof its) != sizeof its || fdatasync(sums)) broken(sums_name);
  }
}

static void check_all(const char *name, const char *sums_name) {
  int file = open(name, O_RDONLY | O_DIRECT), sums = open(sums_name, O_RDONLY);
  if (file < 0 || sums < 0) broken("open");
  if (posix_fadvise(sums, 0, 0, POSIX_FADV_DONTNEED)) broken("fadvise");
  uint64_t its;
  long at = 0;
  for (; read(sums, &its, sizeof its) == sizeof its; at++) {
    if (pread(file, block, BLOCK, (off_t)at * BLOCK) != BLOCK) broken(name);
    if (sum() != its) printf("block %ld is another one\n", at);
  }
  printf("%ld\n", at);
}

int main(int argc, char **argv) {
  if (posix_memalign((void **)&block, 4096, BLOCK)) return 1;
  if (argc == 5 && !strcmp(argv[1], "write")) write_all(argv[2], argv[3], atol(argv[4]));
  else if (argc == 4 && !strcmp(argv[1], "check")) check_all(argv[2], argv[3]);
  else return 2;
  return 0;
}
