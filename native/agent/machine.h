/* What a machine is told at a fork: who it is, what time it is, and bits that its siblings do not have. */
#pragma once
#include "agent.h"

#define HOSTNAME_MAX 64
#define GENERATION_SIZE 16
#define ENTROPY_MIN 32
#define ENTROPY_MAX 512

/* identity.c. 0 or an errno. Nothing of the machine but files below options.root is touched when it is not real. */
int identity_entropy(const uint8_t *bytes, size_t size); /* credited to the kernel, which reseeds at once */
int identity_clock(uint64_t wall_ns);
int identity_hostname(const char *name);
bool identity_hostname_valid(const char *name);
/* Writes a file in place, without waiting for a disk. 0 or an errno. */
int identity_write(const char *path, const void *bytes, size_t size);

/* hooks.c: executables of /etc/forkd/resume.d, one after the other, by name. */
struct hook_result {
  char name[256];
  uint32_t outcome; /* 0 ok, 1 failed, 2 timeout */
  uint32_t code;    /* exit code, 128 + signal, or an errno when it could not be started */
};
/* Calls `end` when all have run: before it returns when there are none. One run at a time. */
void hooks_run(const char *generation, void (*end)(void));
bool hooks_running(void);
size_t hooks_count(void);
const struct hook_result *hooks_result(size_t index);
