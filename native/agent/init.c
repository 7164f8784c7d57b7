/* The start of a guest, as pid 1: from the kernel's initramfs to a root in which programs can run, and a way to the host. */
#include "init.h"
#include "machine.h"
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
#define AGENT_VSOCK_PORT 52
/* struct sockaddr_vm of the kernel, whose headers a musl toolchain does not bring. */
struct vsock_address {
  sa_family_t family;
  uint16_t reserved;
  uint32_t port, cid;
  uint8_t zero[4];
};
#define ANY_CID UINT32_MAX
#define PORT_MS 30000

void init_cannot(const char *format, ...) {
  char text[400];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  log_line("cannot %s", text);
  sync();
  /* The VMM runs with -no-reboot: a reset ends it on every machine type, where "power off" needs ACPI. */
  reboot(RB_AUTOBOOT);
  for (;;) pause();
}

static void say(const char *path, const char *value) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return; /* a setting that this kernel lacks is not worth the machine */
  if (write(fd, value, strlen(value)) < 0) log_line("%s does not take %s: %s", path, value, strerror(errno));
  close(fd);
}

static void loopback_up(void) {
  struct ifreq r = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &r)) init_cannot("find the loopback interface: %s", strerror(errno));
  r.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (ioctl(fd, SIOCSIFFLAGS, &r)) init_cannot("bring up the loopback interface: %s", strerror(errno));
  close(fd);
}

void init_machine(void) {
  char image[32], disk[32];
  umask(0);
  mounts_first();
  reboot(RB_DISABLE_CAD);
  devices_listen();
  devices_load_modules();
  devices_find_disks(image, disk);
  mounts_overlay(image, disk);
  mounts_enter();
  umask(022);
  loopback_up();
  mounts_identity();
  int err = identity_hostname("forkd");
  if (err) log_line("cannot set the hostname: %s", strerror(err));
  say("/proc/sys/kernel/panic", "-1");        /* at once: a machine that panicked must not linger as a running one */
  say("/proc/sys/kernel/core_pattern", "core");
  say("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
  say("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
  /* Timers that wake an idle machine for nothing, twelve times a second in all; hundreds of machines share a host. */
  say("/proc/sys/vm/compaction_proactiveness", "0");
  say("/proc/sys/vm/stat_interval", "60");
  int groups = group_setup();
  if (groups) init_cannot("set up control groups: %s", strerror(groups < 0 ? -groups : errno));
}

static int listen_vsock(void) {
  struct vsock_address a = {.family = AF_VSOCK, .port = AGENT_VSOCK_PORT, .cid = ANY_CID};
  int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 16))
    init_cannot("listen on vsock port %d: %s", AGENT_VSOCK_PORT, strerror(errno));
  return fd;
}

void init_transport(void) {
  const char *port = devices_agent_port(PORT_MS);
  if (port) {
    if (conn_open(port, -1)) init_cannot("open %s: %s", port, strerror(errno));
  } else if (devices_have_vsock()) {
    if (conn_open(NULL, listen_vsock())) init_cannot("watch vsock: %s", strerror(errno));
  } else {
    init_cannot("find a way to the host within %d s: neither a virtio-serial port named agent nor vsock", PORT_MS / 1000);
  }
  devices_quiet();
}
