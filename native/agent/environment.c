/* The arguments and the environment of a process to be. The request is only valid during the verb, and its strings have no NUL: copies are static. */
#include "process.h"
#include <stdio.h>
#include <string.h>

enum {
  MOST_STRINGS = FK_MAX_REQUEST / 8 + 4096, /* each field has a header of 8 bytes */
  MOST_TEXT = FK_MAX_REQUEST + 16384,
  LONGEST = 131072, /* MAX_ARG_STRLEN of Linux, with the NUL */
  PLACES = 1 << 19, /* at least twice MOST_STRINGS */
};

/* Untouched pages of these cost nothing. Main thread only. */
static char text[MOST_TEXT];
static char *strings[MOST_STRINGS];
static uint32_t places[PLACES]; /* hash of a name -> 1 + index in the environment */
static size_t text_used, strings_used;

static char *keep(const void *bytes, size_t length) {
  if (length >= sizeof text - text_used)
    return NULL;
  char *copy = text + text_used;
  memcpy(copy, bytes, length);
  copy[length] = 0;
  text_used += length + 1;
  return copy;
}

static bool push(char *string) {
  if (!string || strings_used >= MOST_STRINGS)
    return false;
  strings[strings_used++] = string;
  return true;
}

static bool too_much(struct slot *s) {
  slot_fail(s, ST_TOO_LONG, 0, "the arguments and environment are larger than %d bytes together", FK_MAX_REQUEST);
  return false;
}

/* A string of the request as the kernel will take it. */
static bool plain(struct slot *s, const struct field *field, const char *what, size_t index) {
  if (memchr(field->bytes, 0, field->length)) {
    slot_fail(s, ST_INVALID, 0, "%s %zu has a NUL byte, which no process can receive", what, index);
    return false;
  }
  if (field->length >= LONGEST) {
    slot_fail(s, ST_TOO_LONG, 0, "%s %zu has %u bytes; Linux takes at most %d: pass it through stdin or a file", what, index, field->length,
      LONGEST - 1);
    return false;
  }
  return true;
}

static bool add_arguments(struct slot *s, const struct fields *f) {
  struct field field;
  size_t at = 0, count = 0;
  bool shell = fields_find(f, F_SHELL, &field);
  if (shell) {
    if (!plain(s, &field, "shell text", 1))
      return false;
    if (!push("/bin/sh") || !push("-c") || !push(keep(field.bytes, field.length)))
      return too_much(s);
  }
  while (fields_next(f, &at, &field)) {
    if (field.tag != F_ARG)
      continue;
    if (shell) {
      slot_fail(s, ST_INVALID, 0, "give either arguments or shell text, not both");
      return false;
    }
    if (!plain(s, &field, "argument", count))
      return false;
    if (count++ == 0 && field.length == 0) {
      slot_fail(s, ST_INVALID, 0, "the command's name is empty");
      return false;
    }
    if (!push(keep(field.bytes, field.length)))
      return too_much(s);
  }
  if (!shell && count == 0) {
    slot_fail(s, ST_INVALID, 0, "there is no command: give at least one argument, or shell text");
    return false;
  }
  return true;
}

static size_t mask;

/* Adds NAME=value at its place: a later one replaces an earlier one, and no program sees two. */
static bool set(char **env, char *pair) {
  if (!pair)
    return false;
  size_t name = strcspn(pair, "=") + 1;
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < name; i++)
    hash = (hash ^ (uint8_t)pair[i]) * 16777619u;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    if (places[at] == 0) {
      if (!push(pair))
        return false;
      places[at] = (uint32_t)(&strings[strings_used] - env);
      return true;
    }
    char **have = env + places[at] - 1;
    if (strncmp(*have, pair, name) == 0) {
      *have = pair;
      return true;
    }
  }
}

static bool set_named(char **env, const char *name, const char *value) {
  char pair[1200];
  int length = snprintf(pair, sizeof pair, "%s=%s", name, value);
  return length < (int)sizeof pair && set(env, keep(pair, (size_t)length));
}

static bool set_defaults(char **env, const struct user *u, bool pty) {
  return set_named(env, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") && set_named(env, "HOME", u->home) &&
    set_named(env, "USER", u->name) && set_named(env, "LOGNAME", u->name) && set_named(env, "SHELL", u->shell) &&
    set_named(env, "LANG", "C.UTF-8") && (!pty || set_named(env, "TERM", "xterm-256color"));
}

bool environment_build(struct slot *s, const struct fields *f, const struct user *u, bool pty, struct launch *l) {
  struct field field;
  size_t at = 0, count = 0;
  text_used = strings_used = 0;
  l->argv = strings;
  if (!add_arguments(s, f))
    return false;
  if (strings_used >= MOST_STRINGS)
    return too_much(s);
  strings[strings_used++] = NULL;

  while (fields_next(f, &at, &field))
    count += field.tag == F_ENV;
  for (size_t i = 0; hello_env(i); i++)
    count++;
  for (mask = 63; mask < 2 * (count + 8) && mask < PLACES - 1;)
    mask = mask * 2 + 1;
  memset(places, 0, (mask + 1) * sizeof *places);

  char **env = strings + strings_used;
  if (!set_defaults(env, u, pty))
    return too_much(s);
  for (size_t i = 0; hello_env(i); i++)
    if (!set(env, (char *)(uintptr_t)hello_env(i)))
      return too_much(s);
  count = 0;
  for (at = 0; fields_next(f, &at, &field);) {
    if (field.tag != F_ENV)
      continue;
    if (!plain(s, &field, "environment entry", count))
      return false;
    const uint8_t *equals = memchr(field.bytes, '=', field.length);
    if (!equals || equals == field.bytes) {
      slot_fail(s, ST_INVALID, 0, "environment entry %zu, '%.*s', is not NAME=value", count, (int)(field.length < 80 ? field.length : 80), field.bytes);
      return false;
    }
    count++;
    if (!set(env, keep(field.bytes, field.length)))
      return too_much(s);
  }
  l->search = "";
  for (char **entry = env; entry < strings + strings_used; entry++)
    if (strncmp(*entry, "PATH=", 5) == 0)
      l->search = *entry + 5;
  if (strings_used >= MOST_STRINGS)
    return too_much(s);
  strings[strings_used++] = NULL;
  l->env = env;
  return true;
}
