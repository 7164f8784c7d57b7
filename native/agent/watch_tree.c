/* The directories of a watch: inotify watches one inode each, so a tree is a table of them. See watch.h. */
#include "watch.h"
#include "dirents.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define MASK (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF)
#define EMPTY (-1)
#define WAS_USED (-2)

static size_t hash_size(const struct watch *w) {
  return (size_t)w->capacity * 2;
}

static size_t memory_size(const struct watch *w) {
  return (size_t)w->capacity * (sizeof *w->nodes + sizeof *w->todo) + hash_size(w) * sizeof *w->by_wd;
}

static size_t wd_hash(const struct watch *w, int32_t wd) {
  return ((uint32_t)wd * 2654435761u) % hash_size(w);
}

int32_t tree_find(const struct watch *w, int32_t wd) {
  size_t at = wd_hash(w, wd);
  for (size_t i = 0; i < hash_size(w) && w->by_wd[at] != EMPTY; i++, at = (at + 1) % hash_size(w))
    if (w->by_wd[at] >= 0 && w->nodes[w->by_wd[at]].wd == wd) return w->by_wd[at];
  return -1;
}

static void hash_put(struct watch *w, int32_t node) {
  size_t at = wd_hash(w, w->nodes[node].wd);
  while (w->by_wd[at] >= 0)
    at = (at + 1) % hash_size(w);
  w->by_wd[at] = node;
}

static void clear(struct watch *w) {
  for (size_t i = 0; i < hash_size(w); i++)
    w->by_wd[i] = EMPTY;
  w->used = w->todo_count = 0;
  w->move_node = -1;
  w->seen_count = 0;
  w->seen_bytes = 0;
  memset(w->seen, 0, sizeof w->seen);
}

int32_t tree_child(const struct watch *w, int32_t parent, const char *name) {
  for (int32_t i = 1; i < w->used; i++)
    if (w->nodes[i].wd >= 0 && w->nodes[i].parent == parent && strcmp(w->nodes[i].name, name) == 0) return i;
  return -1;
}

bool tree_path(const struct watch *w, int32_t node, const char *name, char to[PATH_MAX]) {
  char reversed[PATH_MAX];
  size_t at = sizeof reversed;
  const char *part = name;
  for (int32_t n = node; part || n > 0;) {
    if (!part) {
      part = w->nodes[n].name;
      n = w->nodes[n].parent;
    }
    size_t size = strlen(part);
    if (size + 1 > at) return false;
    at -= size;
    memcpy(reversed + at, part, size);
    reversed[--at] = '/';
    part = NULL;
  }
  size_t tail = sizeof reversed - at, head = strlen(w->path);
  if (head + tail + 1 > PATH_MAX) return false;
  memcpy(to, w->path, head);
  memcpy(to + head, reversed + at, tail);
  to[head + tail] = 0;
  if (head + tail == 0) memcpy(to, "/", 2);
  return true;
}

void tree_forget(struct watch *w, int32_t node) {
  size_t at = wd_hash(w, w->nodes[node].wd);
  while (w->by_wd[at] != node)
    at = (at + 1) % hash_size(w);
  w->by_wd[at] = WAS_USED;
  if (w->by_wd[(at + 1) % hash_size(w)] == EMPTY)
    for (; w->by_wd[at] == WAS_USED; at = (at + hash_size(w) - 1) % hash_size(w))
      w->by_wd[at] = EMPTY; /* no search needs to pass here */
  w->nodes[node].wd = -1;
  while (w->used > 0 && w->nodes[w->used - 1].wd < 0)
    w->used--;
  if (w->move_node == node) w->move_node = -1;
}

static bool is_below(const struct watch *w, int32_t node, int32_t top) {
  for (; node > 0; node = w->nodes[node].parent)
    if (node == top) return true;
  return false;
}

void tree_drop_below(struct watch *w, int32_t top) {
  /* From the end: a node may be older than its parent, but all are judged before `top` itself is forgotten. */
  for (int32_t i = w->used - 1; i > 0; i--) {
    if (i >= w->used || i == top || w->nodes[i].wd < 0 || !is_below(w, i, top)) continue;
    inotify_rm_watch(w->fd, w->nodes[i].wd);
    w->nodes[i].parent = top; /* those below it are still found to be below the top */
    w->todo[w->todo_count++] = i;
  }
  while (w->todo_count > 0)
    tree_forget(w, w->todo[--w->todo_count]);
  inotify_rm_watch(w->fd, w->nodes[top].wd);
  tree_forget(w, top);
}

void tree_moved(struct watch *w, int32_t node, int32_t parent, const char *name) {
  w->nodes[node].parent = parent;
  snprintf(w->nodes[node].name, sizeof w->nodes[node].name, "%s", name);
}

/* ---- what scans have told ---------------------------------------------------------------------------------------- */

static uint64_t seen_hash(int32_t node, const char *name) {
  uint64_t h = 14695981039346656037u ^ (uint64_t)(uint32_t)node;
  for (; *name; name++)
    h = (h ^ (uint8_t)*name) * 1099511628211u;
  return h > 1 ? h : 2; /* 0: empty, 1: was used */
}

static void seen_add(struct watch *w, int32_t node, const char *name) {
  if (w->seen_count >= SEEN_SIZE / 2) return; /* then some are told twice */
  uint64_t h = seen_hash(node, name);
  size_t at = h % SEEN_SIZE;
  while (w->seen[at] > 1)
    at = (at + 1) % SEEN_SIZE;
  w->seen[at] = h;
  w->seen_count++;
}

bool tree_seen(struct watch *w, int32_t node, const char *name) {
  if (w->seen_count == 0) return false;
  uint64_t h = seen_hash(node, name);
  for (size_t i = 0, at = h % SEEN_SIZE; i < SEEN_SIZE && w->seen[at]; i++, at = (at + 1) % SEEN_SIZE) {
    if (w->seen[at] != h) continue;
    w->seen[at] = 1;
    return true;
  }
  return false;
}

/* ---- watching ---------------------------------------------------------------------------------------------------- */

/* Opens what a node is, and watches it. */
static int open_node(const struct watch *w, int32_t parent, const char *name, bool root) {
  char path[PATH_MAX];
  if (!tree_path(w, parent, name, path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return path_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | (root ? 0 : O_DIRECTORY | O_NOFOLLOW), 0);
}

/* By descriptor, so that what is watched is what was opened. */
static int watch_fd(const struct watch *w, int fd, uint32_t mask) {
  char name[40];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  return inotify_add_watch(w->fd, name, mask);
}

/* A new node, or that of a directory which is watched already (then moved to this place), or -1. `fresh` tells which. */
static int32_t add(struct watch *w, int32_t parent, const char *name, bool *fresh) {
  *fresh = false;
  int fd = open_node(w, parent, name, false);
  if (fd < 0) {
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) w->lost = true;
    return -1;
  }
  int wd = watch_fd(w, fd, MASK);
  if (wd < 0) w->lost = true;
  close(fd);
  if (wd < 0) return -1;
  int32_t node = tree_find(w, wd);
  if (node == 0) return -1; /* the root mounted below itself */
  if (node > 0) {
    if (node == w->move_node) w->move_node = -1;
    if (!is_below(w, parent, node)) tree_moved(w, node, parent, name);
    return node;
  }
  int32_t slot = 1;
  if (w->used < w->capacity) slot = w->used;
  else
    while (slot < w->capacity && w->nodes[slot].wd >= 0)
      slot++;
  if (slot >= w->capacity) {
    inotify_rm_watch(w->fd, wd);
    w->lost = true;
    return -1;
  }
  if (slot >= w->used) w->used = slot + 1;
  w->nodes[slot].wd = wd;
  tree_moved(w, slot, parent, name);
  hash_put(w, slot);
  *fresh = true;
  return slot;
}

static void scan(struct watch *w, int32_t node, bool report) {
  char buffer[8192] __attribute__((aligned(8)));
  int fd = node == 0 ? open_node(w, 0, NULL, true) : open_node(w, w->nodes[node].parent, w->nodes[node].name, false);
  if (fd < 0) return; /* gone, which is told by another event */
  ssize_t n;
  while ((n = entries_read(fd, buffer, sizeof buffer)) > 0 && !job_cancelled(w->job)) {
    for (ssize_t at = 0; at < n;) {
      struct entry *e = entry_at(buffer, at);
      at += e->size;
      if (entry_is_dots(e)) continue;
      struct stat st;
      bool directory = e->type == DT_DIR;
      if (e->type == DT_UNKNOWN) directory = fstatat(fd, e->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
      if (report) {
        watch_emit(w, WATCH_CREATED, node, e->name, directory, 0);
        seen_add(w, node, e->name);
      }
      bool fresh;
      int32_t child = directory ? add(w, node, e->name, &fresh) : -1;
      if (child >= 0 && fresh) w->todo[w->todo_count++] = child;
    }
  }
  close(fd);
}

static void scan_all(struct watch *w, bool report) {
  while (w->todo_count > 0 && !job_cancelled(w->job))
    scan(w, w->todo[--w->todo_count], report);
  w->todo_count = 0;
}

void tree_appeared(struct watch *w, int32_t parent, const char *name, size_t buffered) {
  bool fresh;
  int32_t node = add(w, parent, name, &fresh);
  if (node < 0 || !fresh) return;
  w->todo[w->todo_count++] = node;
  scan_all(w, true);
  int queued = 0;
  if (ioctl(w->fd, FIONREAD, &queued) < 0) queued = 0;
  w->seen_bytes = buffered + (size_t)queued;
}

int tree_again(struct watch *w) {
  struct stat st;
  if (w->fd >= 0) close(w->fd);
  clear(w);
  w->lost = false;
  w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (w->fd < 0) return -1;
  char path[PATH_MAX];
  tree_path(w, 0, NULL, path);
  int fd = path_open(path, O_PATH, 0);
  if (fd < 0) return -1;
  int wd = fstat(fd, &st) < 0 ? -1 : watch_fd(w, fd, MASK);
  close(fd);
  if (wd < 0) return -1;
  w->is_directory = S_ISDIR(st.st_mode);
  w->device = st.st_dev;
  w->ino = st.st_ino;
  w->nodes[0] = (struct node){.wd = wd, .parent = -1};
  w->used = 1;
  hash_put(w, 0);
  if (w->recursive && w->is_directory) {
    w->todo[w->todo_count++] = 0;
    scan_all(w, false);
  }
  return 0;
}

int tree_open(struct watch *w) {
  w->capacity = w->recursive ? WATCH_DIRECTORIES : 1;
  uint8_t *m = mmap(NULL, memory_size(w), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return -1;
  w->nodes = (struct node *)(void *)m;
  w->by_wd = (int32_t *)(void *)(m + (size_t)w->capacity * sizeof *w->nodes);
  w->todo = w->by_wd + hash_size(w);
  return tree_again(w);
}

void tree_close(struct watch *w) {
  if (w->fd >= 0) close(w->fd);
  if (w->nodes) munmap(w->nodes, memory_size(w));
}
