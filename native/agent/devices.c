/* Modules, and the devices that appear some time after them. Waiting is for the kernel's uevents, with a deadline. */
#include "init.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An emulated guest under load can take this long to see a disk. */
#define DISKS_MS 60000
/* Of the kernel's headers, which a musl toolchain does not bring. */
#define MODULE_COMPRESSED 4 /* MODULE_INIT_COMPRESSED_FILE */
#define KOBJECT_UEVENT 15   /* NETLINK_KOBJECT_UEVENT */
struct netlink_address {
  sa_family_t family;
  uint16_t pad;
  uint32_t pid, groups;
};

static int uevents = -1;

void devices_listen(void) {
  struct netlink_address a = {.family = AF_NETLINK, .groups = 1};
  uevents = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, KOBJECT_UEVENT);
  if (uevents < 0 || bind(uevents, (struct sockaddr *)&a, sizeof a)) init_cannot("hear of devices: %s", strerror(errno));
}

void devices_quiet(void) {
  if (uevents >= 0) close(uevents);
  uevents = -1;
}

/* Waits for news of devices. False at the deadline. */
static bool wait_for_news(uint64_t deadline) {
  uint64_t now = now_ms();
  struct pollfd p = {.fd = uevents, .events = POLLIN};
  if (now >= deadline || poll(&p, 1, (int)(deadline - now)) == 0) return false;
  char event[4096];
  while (recv(uevents, event, sizeof event, 0) > 0 || errno == ENOBUFS) errno = 0;
  return true;
}

static bool ends_with(const char *s, const char *tail) {
  size_t n = strlen(s), m = strlen(tail);
  return n >= m && !strcmp(s + n - m, tail);
}

static void load(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) init_cannot("open module %s of /modules.list: %s", path, strerror(errno));
  int flags = ends_with(path, ".ko") ? 0 : MODULE_COMPRESSED;
  if (syscall(SYS_finit_module, fd, "", flags) && errno != EEXIST)
    init_cannot("load module %s: %s", path, strerror(errno));
  close(fd);
}

void devices_load_modules(void) {
  FILE *list = fopen("/modules.list", "re");
  if (!list) {
    if (errno == ENOENT) return; /* a kernel that has all built in */
    init_cannot("open /modules.list: %s", strerror(errno));
  }
  char line[512] = "/";
  while (fgets(line + 1, sizeof line - 1, list)) {
    line[strcspn(line, "\r\n")] = 0;
    if (line[1] && line[1] != '#') load(line[1] == '/' ? line + 1 : line);
  }
  fclose(list);
}

enum kind { NOTHING, IMAGE, DISK };

static enum kind what_is_on(const char *path) {
  uint8_t b[2048];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NOTHING;
  ssize_t n = pread(fd, b, sizeof b, 0);
  close(fd);
  if (n != (ssize_t)sizeof b) return NOTHING;
  if (!memcmp(b, "hsqs", 4)) return IMAGE;
  return b[1024 + 56] == 0x53 && b[1024 + 57] == 0xef ? DISK : NOTHING;
}

void devices_find_disks(char image[32], char disk[32]) {
  uint64_t deadline = now_ms() + DISKS_MS;
  image[0] = disk[0] = 0;
  for (;;) {
    char seen[128] = "";
    for (char letter = 'a'; letter <= 'z'; letter++) {
      char path[32];
      snprintf(path, sizeof path, "/dev/vd%c", letter);
      if (access(path, F_OK)) continue;
      enum kind k = what_is_on(path);
      if (k == IMAGE && !image[0]) memcpy(image, path, sizeof path);
      if (k == DISK && !disk[0]) memcpy(disk, path, sizeof path);
      if (k == NOTHING && strlen(seen) + 10 < sizeof seen) strcat(strcat(seen, " "), path);
    }
    if (image[0] && disk[0]) return;
    if (!wait_for_news(deadline))
      init_cannot("find %s%s%s within %d s (unknown content:%s): is the device attached, is virtio_blk in /modules.list?",
                  image[0] ? "" : "an image (squashfs)", image[0] || disk[0] ? "" : " and ",
                  disk[0] ? "" : "a disk (ext4)", DISKS_MS / 1000, seen[0] ? seen : " none");
  }
}

/* A vsock device, not only its driver: one initramfs serves engines with and without. */
bool devices_have_vsock(void) {
  bool found = false;
  DIR *d = opendir("/sys/bus/virtio/devices");
  for (struct dirent *e; d && !found && (e = readdir(d));) {
    char path[320], id[16] = "";
    if (e->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/sys/bus/virtio/devices/%s/device", e->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    found = fd >= 0 && read(fd, id, sizeof id - 1) > 0 && !strcmp(id, "0x0013\n");
    if (fd >= 0) close(fd);
  }
  if (d) closedir(d);
  return found;
}

const char *devices_agent_port(uint64_t deadline_ms) {
  static char device[300];
  uint64_t deadline = now_ms() + deadline_ms;
  do {
    DIR *d = opendir("/sys/class/virtio-ports");
    for (struct dirent *e; d && (e = readdir(d));) {
      if (e->d_name[0] == '.') continue;
      char path[320], name[32] = "";
      snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
      int fd = open(path, O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;
      ssize_t n = read(fd, name, sizeof name - 1);
      close(fd);
      /* A port is named by a message of its own, after it was made: no name yet means look again. */
      if (n <= 0 || strcmp(name, "agent\n")) continue;
      snprintf(device, sizeof device, "/dev/%s", e->d_name);
      if (access(device, F_OK)) continue;
      closedir(d);
      return device;
    }
    if (d) closedir(d);
    if (devices_have_vsock()) return NULL;
  } while (wait_for_news(deadline));
  return NULL;
}
