/* Users and groups, from /etc/passwd and /etc/group by hand: a static program cannot ask NSS. */
#include "process.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads a file line by line. The user can put anything there: a line that does not fit is skipped, what is not a regular file is not read. */
struct lines {
  int fd;
  size_t start, end;
  bool skipping;
  char buffer[8192];
};

static bool lines_open(struct lines *l, const char *path) {
  struct stat info;
  l->start = l->end = 0;
  l->skipping = false;
  l->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (l->fd < 0)
    return false;
  if (fstat(l->fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= 4 << 20)
    return true;
  close(l->fd);
  return false;
}

static char *lines_next(struct lines *l) {
  for (;;) {
    char *newline = memchr(l->buffer + l->start, '\n', l->end - l->start);
    if (newline) {
      char *line = l->buffer + l->start;
      *newline = 0;
      l->start = (size_t)(newline - l->buffer) + 1;
      if (!l->skipping)
        return line;
      l->skipping = false;
      continue;
    }
    if (l->start == 0 && l->end == sizeof l->buffer - 1) {
      l->skipping = true;
      l->end = 0;
    } else {
      memmove(l->buffer, l->buffer + l->start, l->end - l->start);
      l->end -= l->start;
      l->start = 0;
    }
    ssize_t n = read(l->fd, l->buffer + l->end, sizeof l->buffer - 1 - l->end);
    if (n > 0) {
      l->end += (size_t)n;
      continue;
    }
    if (l->end == 0 || l->skipping)
      return NULL;
    l->buffer[l->end] = 0; /* a last line without its newline */
    l->start = l->end = 0;
    return l->buffer;
  }
}

/* Cuts a line at its colons; the last part takes the rest. Returns how many parts there are. */
static int split(char *line, char **parts, int most) {
  int count = 0;
  while (count < most) {
    parts[count++] = line;
    char *colon = strchr(line, ':');
    if (!colon || count == most)
      break;
    *colon = 0;
    line = colon + 1;
  }
  return count;
}

/* A decimal id below 2^32 - 1, which means "no change" to the kernel. */
static bool number(const char *text, uint32_t *out) {
  uint64_t value = 0;
  if (!*text)
    return false;
  for (; *text; text++) {
    if (*text < '0' || *text > '9')
      return false;
    value = value * 10 + (uint64_t)(*text - '0');
    if (value >= UINT32_MAX)
      return false;
  }
  *out = (uint32_t)value;
  return true;
}

static bool digits(const char *text) {
  return *text && text[strspn(text, "0123456789")] == 0;
}

static void copy(char *to, size_t capacity, const char *from) {
  if (strlen(from) < capacity)
    strcpy(to, from);
}

static struct lines lines; /* main thread only */

static bool find_in_passwd(const char *name, bool by_uid, struct user *u) {
  bool found = false;
  char *line, *part[7];
  if (!lines_open(&lines, "/etc/passwd"))
    return false;
  while (!found && (line = lines_next(&lines))) {
    uint32_t uid, gid;
    int parts = split(line, part, 7);
    if (parts < 6 || !number(part[2], &uid) || !number(part[3], &gid))
      continue;
    if (by_uid ? uid != u->uid : strcmp(part[0], name) != 0)
      continue;
    found = true;
    u->uid = uid;
    u->gid = gid;
    copy(u->name, sizeof u->name, part[0]);
    if (part[5][0] == '/')
      copy(u->home, sizeof u->home, part[5]);
    if (parts == 7 && part[6][0] == '/')
      copy(u->shell, sizeof u->shell, part[6]);
  }
  close(lines.fd);
  return found;
}

static bool has_member(const char *members, const char *name) {
  size_t length = strlen(name);
  while (*members) {
    size_t part = strcspn(members, ",");
    if (part == length && memcmp(members, name, part) == 0)
      return true;
    members += part + (members[part] == ',');
  }
  return false;
}

static bool find_group(const char *name, uint32_t *gid) {
  bool found = false;
  char *line, *part[4];
  if (!lines_open(&lines, "/etc/group"))
    return false;
  while (!found && (line = lines_next(&lines)))
    found = split(line, part, 4) >= 3 && strcmp(part[0], name) == 0 && number(part[2], gid);
  close(lines.fd);
  return found;
}

static void add_supplementary(struct user *u) {
  char *line, *part[4];
  if (!lines_open(&lines, "/etc/group"))
    return;
  while (u->group_count < MAX_GROUPS && (line = lines_next(&lines))) {
    uint32_t gid;
    if (split(line, part, 4) == 4 && number(part[2], &gid) && gid != u->gid && has_member(part[3], u->name))
      u->groups[u->group_count++] = gid;
  }
  close(lines.fd);
}

int user_find(const char *spec, struct user *u) {
  char name[256];
  const char *colon = strchr(spec, ':');
  size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
  if (length == 0 || length >= sizeof name || (colon && !colon[1]))
    return ST_INVALID;
  memcpy(name, spec, length);
  name[length] = 0;

  memset(u, 0, sizeof *u);
  strcpy(u->home, "/");
  strcpy(u->shell, "/bin/sh");
  bool by_uid = number(name, &u->uid);
  if (!by_uid && digits(name))
    return ST_INVALID;
  bool known = find_in_passwd(name, by_uid, u);
  if (!known && !by_uid) {
    if (strcmp(name, "root") != 0) /* root is there even in an image without users */
      return ST_NO_SUCH_USER;
    strcpy(u->name, "root");
    strcpy(u->home, "/root");
  }
  if (!known && by_uid)
    copy(u->name, sizeof u->name, name);
  u->groups[u->group_count++] = u->gid;
  if (!colon) {
    if (known)
      add_supplementary(u);
    return ST_OK;
  }
  /* An explicit group stands alone, as with docker's --user. */
  if (!number(colon + 1, &u->gid)) {
    if (digits(colon + 1))
      return ST_INVALID;
    if (!find_group(colon + 1, &u->gid))
      return ST_NO_SUCH_USER;
  }
  u->groups[0] = u->gid;
  return ST_OK;
}
