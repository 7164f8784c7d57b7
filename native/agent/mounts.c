/* File systems of the guest: the overlay that is its root, and what every system expects to find mounted. */
#include "init.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT "/root"

static void directory(const char *path, mode_t mode) {
  struct stat s;
  if (!mkdir(path, mode)) {
    if (chmod(path, mode)) init_cannot("set the mode of %s: %s", path, strerror(errno));
    return;
  }
  if (errno != EEXIST) init_cannot("make directory %s: %s", path, strerror(errno));
  /* A link is followed as the system would: /tmp -> /var/tmp is the image's choice, if it leads to a directory. */
  if (stat(path, &s) || !S_ISDIR(s.st_mode)) init_cannot("use %s: the image has something else there than a directory", path);
}

static void attach(const char *source, const char *path, const char *type, unsigned long flags, const char *data) {
  if (mount(source, path, type, flags, data)) init_cannot("mount %s (%s) at %s: %s", source, type, path, strerror(errno));
}

void mounts_first(void) {
  mkdir("/dev", 0755);
  mkdir("/proc", 0555);
  mkdir("/sys", 0555);
  attach("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
  int console = open("/dev/console", O_RDWR | O_NOCTTY);
  int nothing = open("/dev/null", O_RDWR);
  if (nothing >= 0) dup2(nothing, 0);
  if (console < 0) console = nothing;
  if (console >= 0) {
    dup2(console, 1);
    dup2(console, 2);
  }
  if (console > 2) close(console);
  if (nothing > 2) close(nothing);
  attach("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  attach("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

void mounts_overlay(const char *image, const char *disk) {
  directory("/image", 0755);
  directory("/disk", 0755);
  directory(ROOT, 0755);
  attach(image, "/image", "squashfs", MS_RDONLY, NULL);
  attach(disk, "/disk", "ext4", MS_NOATIME, NULL);
  directory("/disk/upper", 0755);
  directory("/disk/work", 0755);
  /* redirect_dir: a directory of the image can be renamed; without it that fails with EXDEV, which few programs expect. */
  attach("forkd", ROOT, "overlay", MS_NOATIME, "lowerdir=/image,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on");
}

static void copy_file(int from_dir, int to_dir, const char *name) {
  int in = openat(from_dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  int out = in < 0 ? -1 : openat(to_dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
  char bytes[16384];
  ssize_t n = in < 0 || out < 0 ? -1 : 0;
  while (n >= 0 && (n = read(in, bytes, sizeof bytes)) > 0)
    for (ssize_t at = 0, w; at < n; at += w)
      if ((w = write(out, bytes + at, (size_t)(n - at))) < 0) {
        n = -1;
        break;
      }
  if (n < 0) init_cannot("copy interpreter %s from the initramfs: %s", name, strerror(errno));
  close(in);
  close(out);
}

/* The drivers of warm interpreters come with the agent, not with the image. */
static void copy_interpreters(void) {
  DIR *d = opendir("/forkd/interpreters");
  if (!d) return;
  directory("run/forkd/interpreters", 0755);
  int to = open("run/forkd/interpreters", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (struct dirent *e; to >= 0 && (e = readdir(d));)
    if (e->d_name[0] != '.') copy_file(dirfd(d), to, e->d_name);
  if (to >= 0) close(to);
  closedir(d);
}

/* Removes what lies on the initramfs, to give its memory back; never what is mounted over it. */
static void empty_directory(int fd, dev_t device, int depth) {
  DIR *d = fdopendir(fd);
  if (!d) {
    close(fd);
    return;
  }
  for (struct dirent *e; (e = readdir(d));) {
    struct stat s;
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) || s.st_dev != device) continue;
    if (S_ISDIR(s.st_mode)) {
      int sub = depth < 32 ? openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
      if (sub >= 0) empty_directory(sub, device, depth + 1);
      unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR); /* one that holds a mount stays */
    } else {
      unlinkat(dirfd(d), e->d_name, 0);
    }
  }
  closedir(d);
}

static void link_to(const char *target, const char *path) {
  if (symlink(target, path) && errno != EEXIST) init_cannot("link %s: %s", path, strerror(errno));
}

void mounts_enter(void) {
  if (chdir(ROOT)) init_cannot("enter the overlay: %s", strerror(errno));
  static const char *const places[] = {"proc", "sys", "dev", "run"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) directory(places[i], 0755);
  directory("tmp", 01777);
  /* The initramfs's own mounts move along, so that no second instance stays behind in it. */
  attach("/proc", "proc", NULL, MS_MOVE, NULL);
  attach("/sys", "sys", NULL, MS_MOVE, NULL);
  attach("/dev", "dev", NULL, MS_MOVE, NULL);
  directory("dev/pts", 0755);
  directory("dev/shm", 01777);
  attach("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
  attach("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
  attach("run", "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755");
  attach("tmp", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
  attach("cgroup2", "sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, "nsdelegate");
  link_to("/proc/self/fd", "dev/fd");
  link_to("/proc/self/fd/0", "dev/stdin");
  link_to("/proc/self/fd/1", "dev/stdout");
  link_to("/proc/self/fd/2", "dev/stderr");
  directory("run/lock", 01777);
  directory("run/forkd", 0755);
  copy_interpreters();

  struct stat old;
  int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && !fstat(fd, &old)) empty_directory(fd, old.st_dev, 0);
  /* A root on rootfs cannot be pivoted away from: the overlay is moved over it. */
  attach(".", "/", NULL, MS_MOVE, NULL);
  if (chroot(".") || chdir("/")) init_cannot("make the overlay the root: %s", strerror(errno));
}

/* Copies what the image has of a file, at most 64 KiB: a longer one is not worth its place in memory. */
static void copy_small(const char *from, const char *to) {
  static char bytes[65536];
  int in = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) init_cannot("make %s: %s", to, strerror(errno));
  ssize_t n = in < 0 ? 0 : read(in, bytes, sizeof bytes);
  if (n > 0 && write(out, bytes, (size_t)n) != n) init_cannot("write %s: %s", to, strerror(errno));
  if (in >= 0) close(in);
  close(out);
}

void mounts_identity(void) {
  static const char *const names[] = {"hostname", "hosts", "machine-id"};
  char target[64], own[64];
  directory("/etc", 0755);
  directory("/run/forkd/etc", 0755);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(target, sizeof target, "/etc/%s", names[i]);
    snprintf(own, sizeof own, "/run/forkd/etc/%s", names[i]);
    copy_small(target, own);
    int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644); /* a mount needs something to lie on */
    if (fd < 0) init_cannot("make %s: %s", target, strerror(errno));
    close(fd);
    attach(own, target, NULL, MS_BIND, NULL);
  }
}
