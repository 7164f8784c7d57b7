/*
 * WATCH: what happens to a path, or to a directory and what is below it.
 *
 * Each watch has a thread and an inotify instance of its own: a tree on a disk that hangs, or a host that does not read,
 * stops that watch only. What the kernel could not keep is told as `overflow`, after all is watched again: a host that lists the
 * tree upon it has missed nothing.
 */
#include "watch.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define MOVE_WAIT_MS 50 /* the other half of a rename follows at once, or never */

static void put32(struct watch *w, uint32_t v) {
  for (int i = 0; i < 4; i++)
    w->out[w->out_size++] = (uint8_t)(v >> (8 * i));
}

static void flush(struct watch *w) {
  if (w->out_size > 0) job_write(w->job, w->out, w->out_size); /* false: cancelled, which the loop sees */
  w->out_size = 0;
}

static void put_u32(struct watch *w, uint32_t tag, uint32_t value) {
  put32(w, tag);
  put32(w, 4);
  put32(w, value);
}

void watch_emit(struct watch *w, uint32_t event, int32_t node, const char *name, bool directory, uint32_t cookie) {
  char path[PATH_MAX];
  if (node >= 0 && !tree_path(w, node, name, path)) {
    w->lost = true;
    return;
  }
  size_t size = node >= 0 ? strlen(path) : 0;
  size_t record = 3 * 12 + (node >= 0 ? 8 + size : 0);
  if (w->out_size + 4 + record > sizeof w->out) flush(w);
  put32(w, (uint32_t)record);
  put_u32(w, F_EVENT, event);
  if (node >= 0) {
    put32(w, F_PATH);
    put32(w, (uint32_t)size);
    memcpy(w->out + w->out_size, path, size);
    w->out_size += size;
  }
  put_u32(w, F_DIRECTORY, directory);
  put_u32(w, F_COOKIE, cookie);
}

/* A watched file that was replaced or unlinked while somebody has it open gives no other sign. */
static bool is_still_there(const struct watch *w) {
  struct stat st;
  int fd = path_open(w->path[0] ? w->path : "/", O_PATH, 0);
  bool same = fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == w->device && st.st_ino == w->ino;
  if (fd >= 0) close(fd);
  return same;
}

static void settle_move(struct watch *w) {
  if (w->move_node > 0) tree_drop_below(w, w->move_node);
  w->move_node = -1;
}

/* An event of the watched inode itself. */
static void on_self(struct watch *w, int32_t node, const struct inotify_event *e) {
  if (e->mask & IN_IGNORED) {
    if (node == 0) w->gone = true;
    else tree_forget(w, node);
    return;
  }
  if (node != 0) return; /* its parent tells the same */
  if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) w->gone = true;
  else if (e->mask & IN_ATTRIB) {
    if (!is_still_there(w)) w->gone = true;
    else watch_emit(w, WATCH_ATTRIBUTES, 0, NULL, w->is_directory, 0);
  } else if (e->mask & IN_MODIFY) watch_emit(w, WATCH_MODIFIED, 0, NULL, false, 0);
}

static void on_event(struct watch *w, const struct inotify_event *e, size_t buffered) {
  if (e->mask & IN_Q_OVERFLOW) w->lost = true;
  int32_t node = e->mask & IN_Q_OVERFLOW ? -1 : tree_find(w, e->wd);
  if (node < 0) return;
  if (e->len == 0 || e->name[0] == 0) {
    on_self(w, node, e);
    return;
  }
  bool directory = (e->mask & IN_ISDIR) != 0, deep = directory && w->recursive;
  if (e->mask & IN_CREATE) {
    if (tree_seen(w, node, e->name)) return;
    watch_emit(w, WATCH_CREATED, node, e->name, directory, 0);
    if (deep) tree_appeared(w, node, e->name, buffered);
  } else if (e->mask & IN_MOVED_TO) {
    if (tree_seen(w, node, e->name)) return;
    watch_emit(w, WATCH_MOVED_TO, node, e->name, directory, e->cookie);
    if (deep && w->move_node > 0 && w->move_cookie == e->cookie) {
      tree_moved(w, w->move_node, node, e->name);
      w->move_node = -1;
    } else if (deep) {
      tree_appeared(w, node, e->name, buffered);
    }
  } else if (e->mask & IN_MOVED_FROM) {
    watch_emit(w, WATCH_MOVED_FROM, node, e->name, directory, e->cookie);
    if (!deep) return;
    settle_move(w);
    w->move_node = tree_child(w, node, e->name);
    w->move_cookie = e->cookie;
  } else if (e->mask & IN_DELETE) watch_emit(w, WATCH_REMOVED, node, e->name, directory, 0);
  else if (e->mask & IN_MODIFY) watch_emit(w, WATCH_MODIFIED, node, e->name, directory, 0);
  else if (e->mask & IN_ATTRIB) watch_emit(w, WATCH_ATTRIBUTES, node, e->name, directory, 0);
}

static void consume(struct watch *w, const char *buffer, size_t size) {
  for (size_t at = 0; at < size && !w->gone;) {
    const struct inotify_event *e = (const struct inotify_event *)(const void *)(buffer + at);
    size_t length = sizeof *e + e->len;
    at += length;
    if (w->seen_bytes >= length) {
      w->seen_bytes -= length;
    } else if (w->seen_count > 0) { /* came after the last scan: it repeats nothing */
      memset(w->seen, 0, sizeof w->seen);
      w->seen_count = 0;
      w->seen_bytes = 0;
    }
    on_event(w, e, size - at);
  }
}

static void run(struct watch *w) {
  char buffer[16384] __attribute__((aligned(8)));
  while (!w->gone && !job_cancelled(w->job)) {
    if (w->lost) {
      if (tree_again(w) < 0) {
        w->gone = true;
        break;
      }
      w->lost = false; /* what cannot be watched at all (too many, too deep) is not tried again and again */
      watch_emit(w, WATCH_OVERFLOW, -1, NULL, false, 0);
    }
    flush(w);
    struct pollfd fds[2] = {{.fd = w->fd, .events = POLLIN}, {.fd = job_cancel_fd(w->job), .events = POLLIN}};
    int n = poll(fds, 2, w->move_node > 0 ? MOVE_WAIT_MS : -1);
    if (n == 0) settle_move(w);
    if (n <= 0 || !fds[0].revents) continue;
    ssize_t size = read(w->fd, buffer, sizeof buffer);
    if (size > 0) consume(w, buffer, (size_t)size);
    else if (size < 0 && errno != EAGAIN && errno != EINTR) w->lost = true;
  }
  if (w->gone) watch_emit(w, WATCH_GONE, 0, NULL, w->is_directory, 0);
  flush(w);
}

static void watch_body(struct job *j, const struct fields *f) {
  struct watch w = {.job = j, .fd = -1, .recursive = fields_u32(f, F_RECURSIVE, 0) != 0, .move_node = -1};
  char path[PATH_MAX], shown[SHOWN_PATH];
  int status = fields_string(f, F_PATH, path, sizeof path - 1);
  size_t size = status == ST_OK ? strlen(path) : 0;
  if (size == 0) {
    job_fail(j, status == ST_OK ? ST_INVALID : status, 0, "the path to watch is missing, empty, too long, or has a NUL");
    return;
  }
  while (size > 0 && path[size - 1] == '/')
    path[--size] = 0;
  size_t slash = size > 0 && path[0] != '/';
  if (slash) w.path[0] = '/';
  memcpy(w.path + slash, path, size + 1);
  int opened = tree_open(&w);
  int err = errno;
  if (opened < 0 && (err == ENOSPC || err == EMFILE))
    job_fail(j, ST_BUSY, err, "cannot watch %s: the guest's limit fs.inotify.%s is used up: raise it or end other watches", show_path(path, shown),
             err == ENOSPC ? "max_user_watches" : "max_user_instances");
  else if (opened < 0) job_fail_path(j, err, "watch", size > 0 ? path : "/");
  else if (w.lost)
    job_fail(j, ST_TOO_LARGE, 0, "cannot watch all of %s: it has more than %d directories, or fs.inotify.max_user_watches is used up", show_path(path, shown),
             WATCH_DIRECTORIES);
  else {
    job_reply(j, NULL);
    run(&w);
  }
  tree_close(&w);
}

void verb_watch(struct slot *s, const struct fields *f) {
  job_start_apart(s, watch_body, f, true);
}
