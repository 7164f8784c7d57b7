/* Directory entries as the kernel gives them: opendir would allocate. */
#pragma once
#include "agent.h"
#include <dirent.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct entry {
  uint64_t ino;
  int64_t next;
  unsigned short size;
  unsigned char type; /* DT_* */
  char name[];
};

static inline ssize_t entries_read(int fd, void *buffer, size_t size) {
  return syscall(SYS_getdents64, fd, buffer, size);
}

static inline struct entry *entry_at(void *buffer, ssize_t at) {
  return (struct entry *)(void *)((char *)buffer + at);
}

/* `.` and `..` */
static inline int entry_is_dots(const struct entry *e) {
  return e->name[0] == '.' && (e->name[1] == 0 || (e->name[1] == '.' && e->name[2] == 0));
}
