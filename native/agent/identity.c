/* The parts of HELLO that act on the machine. No process is started and no disk waited for: this stands between a fork and its first use. */
#include "machine.h"
#include "paths.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* linux/random.h, which musl's headers lack. */
struct pool_info {
  int bits, size;
  uint8_t bytes[ENTROPY_MAX];
};
#define ADD_ENTROPY _IOW('R', 0x03, int[2]) /* RNDADDENTROPY */
#define RESEED _IO('R', 0x07)               /* RNDRESEEDCRNG: else the next reseed is up to a minute away */

/*
 * What a fork writes stays open: under emulation each child would have the walk through paths and file systems translated anew, for a
 * third of its hello.
 */
static struct {
  const char *path;
  int fd;
} kept[] = {
  {"/etc/hostname", -1}, {"/etc/hosts", -1}, {"/etc/machine-id", -1}, {"/run/forkd/generation", -1}, {"/run/forkd/metadata.json", -1},
};

/* O_NONBLOCK: the guest's users may have put a fifo there. No O_TRUNC: a reader sees the old text or the new. */
static int open_for_writing(const char *path) {
  return path_open(path, O_RDWR | O_CREAT | O_NONBLOCK | O_NOCTTY, 0644);
}

/* A descriptor of the file that has this name now, as far as that can be told without a walk: one without a name is replaced. */
static int opened(const char *path, struct stat *st, bool *keep) {
  size_t n = sizeof kept / sizeof *kept, i = 0;
  while (i < n && strcmp(kept[i].path, path) != 0) i++;
  *keep = options.real && i < n;
  if (*keep && kept[i].fd >= 0) {
    if (fstat(kept[i].fd, st) == 0 && st->st_nlink > 0) return kept[i].fd;
    close(kept[i].fd);
    kept[i].fd = -1;
  }
  int fd = open_for_writing(path);
  if (fd >= 0 && fstat(fd, st) < 0) {
    close(fd);
    return -1;
  }
  if (fd >= 0 && *keep && S_ISREG(st->st_mode)) kept[i].fd = fd;
  else *keep = false;
  return fd;
}

int identity_entropy(const uint8_t *bytes, size_t size) {
  static int fd = -1;
  if (!options.real) return 0;
  if (fd < 0) fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  struct pool_info pool = {.bits = (int)size * 8, .size = (int)size};
  memcpy(pool.bytes, bytes, size);
  int err = ioctl(fd, ADD_ENTROPY, &pool) < 0 || ioctl(fd, RESEED) < 0 ? errno : 0;
  explicit_bzero(&pool, sizeof pool);
  return err;
}

int identity_clock(uint64_t wall_ns) {
  struct timespec t = {.tv_sec = (time_t)(wall_ns / 1000000000u), .tv_nsec = (long)(wall_ns % 1000000000u)};
  if (!options.real) return 0;
  return clock_settime(CLOCK_REALTIME, &t) < 0 ? errno : 0;
}

int identity_write(const char *path, const void *bytes, size_t size) {
  struct stat st;
  bool keep;
  int fd = opened(path, &st, &keep);
  if (fd < 0) return errno;
  int err = S_ISREG(st.st_mode) ? 0 : EINVAL;
  for (size_t at = 0; !err && at < size;) {
    ssize_t n = pwrite(fd, (const uint8_t *)bytes + at, size - at, (off_t)at);
    if (n >= 0) at += (size_t)n;
    else if (errno != EINTR) err = errno;
  }
  if (!err && (uint64_t)st.st_size > size && ftruncate(fd, (off_t)size) < 0) err = errno;
  if (!keep) close(fd);
  return err;
}

/* Reads a file whole, and makes it when there is none. Its size; -1 with errno, EFBIG when it is not regular or larger than the buffer. */
static ssize_t read_whole(const char *path, char *to, size_t capacity) {
  struct stat st;
  bool keep;
  int fd = opened(path, &st, &keep);
  if (fd < 0) return -1;
  errno = EFBIG;
  ssize_t size = S_ISREG(st.st_mode) && (uint64_t)st.st_size < capacity ? 0 : -1;
  ssize_t n = 1;
  while (size >= 0 && n != 0 && (size_t)size < capacity) {
    n = pread(fd, to + size, capacity - (size_t)size, size);
    if (n >= 0) size += n;
    else if (errno != EINTR) size = -1;
  }
  int err = errno;
  if (!keep) close(fd);
  errno = (size_t)size < capacity ? err : EFBIG;
  return (size_t)size < capacity ? size : -1;
}

bool identity_hostname_valid(const char *name) {
  size_t size = strlen(name);
  if (size == 0 || size > HOSTNAME_MAX || name[0] == '-' || name[0] == '.') return false;
  for (const char *c = name; *c; c++)
    if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.' && *c != '_') return false;
  return true;
}

/* True for a line of /etc/hosts that says 127.0.1.1: by Debian's habit the machine's own name. */
static bool is_own_line(const char *line, size_t size) {
  static const char own[] = "127.0.1.1";
  size_t n = sizeof own - 1;
  return size > n && memcmp(line, own, n) == 0 && (line[n] == ' ' || line[n] == '\t');
}

/* Puts the name into /etc/hosts in place of the one before. A file that is unusually large is left alone. */
static int write_hosts(const char *name) {
  static char old[65536], now[65536 + 128];
  ssize_t size = read_whole("/etc/hosts", old, sizeof old);
  if (size < 0) return errno;
  if (size == 0) { /* there was none */
    static const char first[] = "127.0.0.1\tlocalhost\n::1\tlocalhost\n";
    size = sizeof first - 1;
    memcpy(old, first, sizeof first - 1);
  }
  size_t used = 0;
  for (ssize_t at = 0; at < size;) {
    const char *line = old + at, *end = memchr(line, '\n', (size_t)(size - at));
    size_t length = end ? (size_t)(end - line) + 1 : (size_t)(size - at);
    at += (ssize_t)length;
    if (is_own_line(line, length)) continue;
    memcpy(now + used, line, length);
    used += length;
  }
  if (used > 0 && now[used - 1] != '\n') now[used++] = '\n';
  memcpy(now + used, "127.0.1.1\t", 10);
  used += 10;
  memcpy(now + used, name, strlen(name));
  used += strlen(name);
  now[used++] = '\n';
  return identity_write("/etc/hosts", now, used);
}

int identity_hostname(const char *name) {
  char line[HOSTNAME_MAX + 2];
  size_t size = strlen(name);
  if (options.real && sethostname(name, size) < 0) return errno;
  memcpy(line, name, size);
  line[size] = '\n';
  /* The kernel's name counts; an image that is read-only there keeps its files. */
  int err = identity_write("/etc/hostname", line, size + 1);
  if (err && err != ENOENT && err != EROFS) log_line("/etc/hostname: %s", strerror(err));
  err = write_hosts(name);
  if (err && err != ENOENT && err != EROFS) log_line("/etc/hosts: %s", strerror(err));
  return 0;
}
