/* The resume recipe: a paused VMM is resumed from here when the daemon that paused it is gone or late. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim.h"

#define SENDING_TIMEOUT_US 5000000

static struct {
  enum { IDLE, ARMED, SENDING } state;
  struct conn *owner;
  char *socket, **lines;
  int count, next; /* lines sent */
  bool greets; /* the VMM speaks first */
  int fd;
  int64_t due;
} recipe = {.fd = -1};

static void forget(void) {
  if (recipe.fd >= 0) close(recipe.fd);
  for (int i = 0; i < recipe.count; i++) free(recipe.lines[i]);
  free(recipe.lines);
  free(recipe.socket);
  memset(&recipe, 0, sizeof recipe);
  recipe.fd = -1;
}

void resume_arm(struct conn *owner, char *socket, char **lines, int count, bool greets, uint32_t deadline_ms) {
  forget();
  recipe.state = ARMED;
  recipe.owner = owner;
  recipe.socket = socket, recipe.lines = lines, recipe.count = count, recipe.greets = greets;
  recipe.due = now_us() + (int64_t)deadline_ms * 1000;
}

bool resume_disarm(void) {
  if (recipe.state != ARMED) return false;
  forget();
  return true;
}

/* A line has come: the next of ours goes out. After the last one's answer the work is done. */
static void send_next(void) {
  if (recipe.next == recipe.count) {
    note("the VMM has answered: resumed");
    forget();
    return;
  }
  const char *line = recipe.lines[recipe.next++];
  size_t length = strlen(line);
  /* A recipe is far smaller than a socket's buffer. */
  if (send(recipe.fd, line, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length) {
    note("send to %s: %s", recipe.socket, strerror(errno));
    forget();
  }
}

/* Connects; the rest follows as the VMM answers. */
static void begin(const char *why) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  note("%s: resuming the VMM through %s", why, recipe.socket);
  recipe.state = SENDING;
  recipe.owner = NULL;
  recipe.due = now_us() + SENDING_TIMEOUT_US;
  strncpy(to.sun_path, recipe.socket, sizeof to.sun_path - 1);
  recipe.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (recipe.fd < 0 || connect(recipe.fd, (struct sockaddr *)&to, sizeof to)) {
    note("connect to %s: %s", recipe.socket, strerror(errno));
    forget();
  } else if (!recipe.greets) send_next();
}

void resume_owner_gone(struct conn *owner) {
  if (recipe.state == ARMED && recipe.owner == owner) begin("the daemon's connection has closed while a pause was its own");
}

int resume_poll(short *events, int64_t *due) {
  *due = recipe.state == IDLE ? -1 : recipe.due;
  *events = POLLIN;
  return recipe.fd;
}

void resume_step(short revents) {
  if (recipe.state == IDLE) return;
  if (recipe.state == SENDING && revents) {
    char bytes[4096];
    ssize_t n = recv(recipe.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      note("%s closed amid the resume recipe", recipe.socket);
      forget();
      return;
    }
    for (ssize_t i = 0; i < n && recipe.state == SENDING; i++)
      if (bytes[i] == '\n') send_next();
  }
  if (recipe.state == IDLE || now_us() < recipe.due) return;
  if (recipe.state == ARMED) begin("the deadline of a pause has passed");
  else {
    note("%s did not answer the resume recipe in time", recipe.socket);
    forget();
  }
}
