/*
 * A VMM for tests, made like Firecracker: a thread takes requests by HTTP, the main thread carries them out. A snapshot writes the device state,
 * and then opens a path for guest memory. Guest memory is `memory` of the working directory, mapped privately in two ranges that lie apart, as that
 * of a guest above 3 GiB; it has written page 5 of the upper one. Its device never rests: at every
 * turn of the main loop it counts one up in page 6, paused or not, and its state is that number.
 *
 *   PATCH /vm                 204
 *   PUT /snapshot/create      400 in Firecracker's words when the open fails, else 204; a state called "refused" is refused at once, before a
 *                             state called "slow" it waits 300 ms
 *
 * `requests` notes what has been carried out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096

static int to_main[2], to_api[2];
static char request[8192], answer[1024];

static void reply(int status, const char *fault) {
  char body[512] = "";
  if (fault) snprintf(body, sizeof body, "{\"fault_message\":\"%s\"}", fault);
  if (fault) snprintf(answer, sizeof answer, "HTTP/1.1 %d \r\nServer: test\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);
  else snprintf(answer, sizeof answer, "HTTP/1.1 %d \r\nServer: test\r\nConnection: keep-alive\r\n\r\n", status);
}

/* The value of a name in the request's body. */
static void value_of(const char *name, char *into, size_t room) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":\"", name);
  const char *at = strstr(request, key);
  at = at ? at + strlen(key) : "";
  snprintf(into, room, "%.*s", (int)strcspn(at, "\""), at);
}

static void snapshot(const uint64_t *counter) {
  char state[128], memory[128], fault[256];
  value_of("snapshot_path", state, sizeof state);
  value_of("mem_file_path", memory, sizeof memory);
  if (!strcmp(state, "refused")) return reply(400, "The snapshot is refused");
  if (!strcmp(state, "slow")) poll(NULL, 0, 300);
  int fd = open(state, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, counter, sizeof *counter) != sizeof *counter || fsync(fd) || close(fd)) return reply(400, "no state");
  fd = open(memory, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) return close(fd), reply(204, NULL);
  snprintf(fault, sizeof fault, "Create snapshot error: Cannot perform open on the memory backing file: %s (os error %d)", strerror(errno), errno);
  reply(400, fault);
}

/* One request, whole, and nothing of another that was sent behind it; false at the end of the connection. */
static int receive(int fd) {
  size_t length = 0;
  for (;;) {
    if (length == sizeof request - 1 || read(fd, request + length, 1) != 1) return 0;
    request[++length] = 0;
    char *end = strstr(request, "\r\n\r\n"), *field = strstr(request, "Content-Length: ");
    if (end && field && length >= (size_t)(end + 4 - request) + strtoul(field + 16, NULL, 10)) return 1;
  }
}

static void *api(void *arg) {
  int listener = *(int *)arg;
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    while (fd >= 0 && receive(fd)) {
      char byte = 0;
      if (write(to_main[1], &byte, 1) != 1 || read(to_api[0], &byte, 1) != 1) _exit(1);
      if (write(fd, answer, strlen(answer)) < 0) break;
    }
    close(fd);
  }
}

/* The lower half; the upper one lies one half above it. NULL where that cannot be. */
static uint8_t *map_halves(int fd, size_t half) {
  uint8_t *low = mmap(NULL, 3 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (low == MAP_FAILED) return NULL;
  for (int i = 0; i < 2; i++) {
    uint8_t *at = low + 2 * i * half;
    if (mmap(at, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, (off_t)(i * half)) != at || madvise(at, half, MADV_DONTFORK)) return NULL;
  }
  memset(low + 2 * half + 5 * PAGE, 0x5a, PAGE);
  return low;
}

int main(void) {
  struct sockaddr_un here = {.sun_family = AF_UNIX, .sun_path = "api.sock"};
  int listener = socket(AF_UNIX, SOCK_STREAM, 0), memory = open("memory", O_RDONLY), notes = open("requests", O_WRONLY | O_CREAT | O_APPEND, 0600);
  struct stat facts;
  if (memory < 0 || fstat(memory, &facts) || pipe(to_main) || pipe(to_api)) return 1;
  uint8_t *ram = map_halves(memory, (size_t)facts.st_size / 2);
  if (!ram) return 1;
  uint64_t *counter = (uint64_t *)(void *)(ram + 6 * PAGE);
  if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 4)) return 1;
  pthread_t thread;
  if (pthread_create(&thread, NULL, api, &listener)) return 1;
  for (;;) {
    struct pollfd p = {to_main[0], POLLIN, 0};
    int n = poll(&p, 1, 0); /* the device does not rest */
    ++*counter;
    char byte;
    if (n <= 0) continue;
    if (read(to_main[0], &byte, 1) != 1) return 1;
    if (!strncmp(request, "PUT /snapshot/create ", 21)) snapshot(counter);
    else reply(204, NULL);
    const char *body = strstr(request, "\r\n\r\n") + 4;
    if (dprintf(notes, "%s\n", body) < 0 || write(to_api[1], &byte, 1) != 1) return 1;
  }
}
