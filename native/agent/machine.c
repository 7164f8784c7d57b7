/*
 * HELLO and the other verbs of the machine.
 *
 * HELLO's order: first the random bits, so that nothing which runs later draws what a sibling draws; then time, names, files; then
 * hooks, which see all of it; then the thaw. Its answer comes when the hooks have ended. A host that breaks off meanwhile stops
 * nothing: the hooks end, and what was to be thawed is thawed.
 */
#include "machine.h"
#include "jobs.h"
#include "paths.h"
#include "session.h"
#include <errno.h>
#include <sys/mman.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <time.h>
#include <unistd.h>

#define ENV_BYTES (256 * 1024)
#define ENV_COUNT 4096
#define POWEROFF_LIMIT_MS 5000 /* disks that do not take the last writes */
#define ANSWER_MS 200          /* the answer is on its way */

static char env_bytes[ENV_BYTES];
static uint32_t env_at[ENV_COUNT];
static size_t env_count;

static struct {
  struct slot *slot; /* NULL: nobody waits for the answer */
  uint32_t thaw;
  uint64_t began;
} hello;

const char *hello_env(size_t index) {
  return index < env_count ? env_bytes + env_at[index] : NULL;
}

static uint64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- HELLO ------------------------------------------------------------------------------------------------------- */

/* Fills the table anew. 0, or a status, with why in `text`. */
static int set_env(const struct fields *f, char *text, size_t capacity) {
  struct field field;
  size_t used = 0, n = 0, bytes = 0;
  for (size_t at = 0; fields_next(f, &at, &field);) {
    if (field.tag != F_ENV) continue;
    const uint8_t *equals = memchr(field.bytes, '=', field.length);
    if (!equals || equals == field.bytes || memchr(field.bytes, 0, field.length)) {
      snprintf(text, capacity, "a variable of env is not NAME=value, or has a NUL: \"%.*s\"", (int)(field.length < 64 ? field.length : 64), (const char *)field.bytes);
      return ST_INVALID;
    }
    bytes += field.length + 1;
    n++;
  }
  if (bytes > ENV_BYTES || n > ENV_COUNT) {
    snprintf(text, capacity, "env has %zu variables of %zu bytes: at most %d of %d bytes in all", n, bytes, ENV_COUNT, ENV_BYTES);
    return ST_TOO_LARGE;
  }
  env_count = 0;
  for (size_t at = 0; fields_next(f, &at, &field);) {
    if (field.tag != F_ENV) continue;
    env_at[env_count++] = (uint32_t)used;
    memcpy(env_bytes + used, field.bytes, field.length);
    env_bytes[used + field.length] = 0;
    used += field.length + 1;
  }
  return ST_OK;
}

static bool is_hex(const char *text) {
  return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

static void write_or_log(const char *path, const void *bytes, size_t size) {
  int err = identity_write(path, bytes, size);
  if (err) log_line("%s: %s", path, strerror(err));
}

static void write_files(const char *generation, const char *machine_id, const struct field *metadata) {
  char line[34];
  snprintf(line, sizeof line, "%s\n", generation);
  int missing = identity_write("/run/forkd/generation", line, 33);
  if (missing == ENOENT) {
    if (path_make_parents("/run/forkd/any", (uid_t)-1, (gid_t)-1) < 0) log_line("/run/forkd: %s", strerror(errno));
    write_or_log("/run/forkd/generation", line, 33);
  } else if (missing) {
    log_line("/run/forkd/generation: %s", strerror(missing));
  }
  write_or_log("/run/forkd/metadata.json", metadata->bytes, metadata->length);
  snprintf(line, sizeof line, "%s\n", machine_id);
  int err = identity_write("/etc/machine-id", line, 33);
  if (err && err != ENOENT && err != EROFS) log_line("/etc/machine-id: %s", strerror(err));
}

static void hello_end(void) {
  static struct out o;
  uint64_t now = monotonic_ns();
  if (hello.thaw) group_freeze(hello.thaw & 1, hello.thaw & 2, false);
  struct slot *s = hello.slot;
  hello.slot = NULL;
  if (!s) return;
  o.size = 0;
  o.overflow = false;
  out_u32(&o, F_PROTOCOL, FK_VERSION);
  out_u64(&o, F_MONOTONIC, now);
  out_u64(&o, F_TOOK, now - hello.began);
  for (size_t i = 0; i < hooks_count(); i++) {
    const struct hook_result *h = hooks_result(i);
    uint8_t bytes[8 + sizeof h->name];
    size_t size = strlen(h->name);
    if (o.size + 16 + size + 8 > FK_MAX_RESPONSE) break; /* the rest ran, and does not fit */
    for (int b = 0; b < 4; b++) {
      bytes[b] = (uint8_t)(h->outcome >> (8 * b));
      bytes[4 + b] = (uint8_t)(h->code >> (8 * b));
    }
    memcpy(bytes + 8, h->name, size);
    out_bytes(&o, F_HOOK, bytes, 8 + size);
  }
  slot_reply(s, &o);
}

static void hello_release(struct slot *s) {
  (void)s;
  hello.slot = NULL;
}

static const struct slot_ops hello_ops = {.release = hello_release};

static void verb_hello(struct slot *s, const struct fields *f) {
  uint64_t began = monotonic_ns();
  struct field generation, entropy, clock, metadata = {.bytes = (const uint8_t *)"{}", .length = 2};
  char hostname[HOSTNAME_MAX + 1], machine_id[33], hex[33], text[192];
  if (hooks_running()) {
    slot_fail(s, ST_BUSY, 0, "hooks of the hello before still run");
    return;
  }
  if (!fields_find(f, F_GENERATION, &generation) || generation.length != GENERATION_SIZE) {
    slot_fail(s, ST_INVALID, 0, "hello: generation is not %d bytes", GENERATION_SIZE);
    return;
  }
  if (!fields_find(f, F_ENTROPY, &entropy) || entropy.length < ENTROPY_MIN || entropy.length > ENTROPY_MAX) {
    slot_fail(s, ST_INVALID, 0, "hello: entropy is not %d to %d bytes", ENTROPY_MIN, ENTROPY_MAX);
    return;
  }
  if (!fields_find(f, F_WALL_CLOCK, &clock)) {
    slot_fail(s, ST_INVALID, 0, "hello: wall_clock is missing");
    return;
  }
  if (fields_string(f, F_HOSTNAME, hostname, sizeof hostname) != ST_OK || !identity_hostname_valid(hostname)) {
    slot_fail(s, ST_INVALID, 0, "hello: hostname is not 1 to %d letters, digits, '-', '.', '_'", HOSTNAME_MAX);
    return;
  }
  if (fields_string(f, F_MACHINE_ID, machine_id, sizeof machine_id) != ST_OK || !is_hex(machine_id)) {
    slot_fail(s, ST_INVALID, 0, "hello: machine_id is not 32 lower-case hex digits");
    return;
  }
  int status = set_env(f, text, sizeof text);
  if (status != ST_OK) {
    slot_fail(s, status, 0, "hello: %s", text);
    return;
  }
  (void)fields_find(f, F_METADATA, &metadata);
  int err = identity_entropy(entropy.bytes, entropy.length);
  if (err) { /* a child that draws its sibling's random numbers must not go on */
    slot_fail(s, status_of_errno(err), err, "hello: the kernel did not take the entropy: %s", strerror(err));
    return;
  }
  err = identity_clock(fields_u64(f, F_WALL_CLOCK, 0));
  if (!err) err = identity_hostname(hostname);
  if (err) {
    slot_fail(s, status_of_errno(err), err, "hello: clock or hostname: %s", strerror(err));
    return;
  }
  for (int i = 0; i < GENERATION_SIZE; i++)
    snprintf(hex + 2 * i, 3, "%02x", generation.bytes[i]);
  write_files(hex, machine_id, &metadata);
  hello.slot = s;
  hello.thaw = fields_u32(f, F_THAW, 0);
  hello.began = began;
  slot_set(s, &hello_ops, NULL);
  hooks_run(hex, hello_end);
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static void conclude(struct slot *s, int err, const char *what) {
  if (err) slot_fail(s, status_of_errno(err), err, "%s: %s", what, strerror(err));
  else slot_reply(s, NULL);
}

static void set_time(struct slot *s, const struct fields *f) {
  struct field clock;
  if (!fields_find(f, F_WALL_CLOCK, &clock)) slot_fail(s, ST_INVALID, 0, "wall_clock is missing");
  else conclude(s, identity_clock(fields_u64(f, F_WALL_CLOCK, 0)), "cannot set the clock");
}

static void add_entropy(struct slot *s, const struct fields *f) {
  struct field entropy;
  if (!fields_find(f, F_ENTROPY, &entropy) || entropy.length < ENTROPY_MIN || entropy.length > ENTROPY_MAX)
    slot_fail(s, ST_INVALID, 0, "entropy is not %d to %d bytes", ENTROPY_MIN, ENTROPY_MAX);
  else conclude(s, identity_entropy(entropy.bytes, entropy.length), "the kernel did not take the entropy");
}

static void set_hostname(struct slot *s, const struct fields *f) {
  char name[HOSTNAME_MAX + 1];
  if (fields_string(f, F_HOSTNAME, name, sizeof name) != ST_OK || !identity_hostname_valid(name))
    slot_fail(s, ST_INVALID, 0, "the hostname is not 1 to %d letters, digits, '-', '.', '_'", HOSTNAME_MAX);
  else conclude(s, identity_hostname(name), "cannot set the hostname");
}

/*
 * All but the agent stands still: a template is about to be captured. Pages that the agent shares with what it has forked would be copied
 * at their first write in every child, on the way to its hello: this writes to those that exist.
 */
static void own_pages(void) {
  static unsigned char there[4096];
  char line[256];
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    char mode[5];
    if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || strcmp(mode, "rw-p") != 0) continue;
    for (unsigned long at = from; at < to; at += sizeof there * 4096ul) {
      size_t pages = (to - at) / 4096 < sizeof there ? (to - at) / 4096 : sizeof there;
      if (mincore((void *)at, pages * 4096, there)) break;
      for (size_t i = 0; i < pages; i++)
        if (there[i] & 1) {
          volatile char *byte = (volatile char *)(at + i * 4096);
          *byte = *byte;
        }
    }
  }
  if (maps) fclose(maps);
}

static void freeze(struct slot *s, const struct fields *f, bool frozen) {
  uint32_t bits = fields_u32(f, F_THAW, 0);
  if (bits == 0 || bits > 3) {
    slot_fail(s, ST_INVALID, 0, "thaw is %u: 1 for interpreters, 2 for user, 3 for both", bits);
    return;
  }
  group_freeze(bits & 1, bits & 2, frozen);
  if (frozen && bits == 3) own_pages();
  slot_reply(s, NULL);
}

static void sync_body(struct job *j, const struct fields *f) {
  (void)f;
  if (options.real) sync();
  job_reply(j, NULL);
}

/* ---- POWEROFF ---------------------------------------------------------------------------------------------------- */

static void the_end(struct timer *t) {
  (void)t;
  if (!options.real) {
    loop_stop(0);
    return;
  }
  reboot(RB_AUTOBOOT); /* a reset, at which a VMM that does not reboot ends: microvm has no power button */
  log_line("reboot: %s", strerror(errno));
}

static struct timer end_timer = {.fire = the_end};

static void poweroff_body(struct job *j, const struct fields *f) {
  (void)f;
  if (options.real) {
    kill(-1, SIGKILL); /* by pid 1: all but itself */
    sync();
  }
  job_reply(j, NULL);
  if (!options.real) return;
  struct timespec wait = {.tv_nsec = ANSWER_MS * 1000000L};
  nanosleep(&wait, NULL);
  the_end(NULL);
}

static void poweroff(struct slot *s) {
  /* Also when every worker hangs, or the disk does. */
  timer_set(&end_timer, options.real ? POWEROFF_LIMIT_MS : ANSWER_MS);
  job_start(s, poweroff_body, false, false);
}

void verb_machine(struct slot *s, uint16_t verb, const struct fields *f) {
  switch (verb) {
  case V_HELLO: verb_hello(s, f); return;
  case V_SET_TIME: set_time(s, f); return;
  case V_ADD_ENTROPY: add_entropy(s, f); return;
  case V_SET_HOSTNAME: set_hostname(s, f); return;
  case V_FREEZE: freeze(s, f, true); return;
  case V_THAW: freeze(s, f, false); return;
  case V_SYNC_DISKS: job_start(s, sync_body, false, false); return;
  case V_POWEROFF: poweroff(s); return;
  default: slot_fail(s, ST_UNSUPPORTED, 0, "verb %u is none of the machine", verb);
  }
}
