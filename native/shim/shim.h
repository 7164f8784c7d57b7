/* What the parts of the shim know of each other. The shim is the parent of one VMM: see docs and packages/wire/src/shim.ts. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.gen.h"

/* Why something failed: an errno, and a sentence for people. */
struct fault {
  int code;
  char text[320];
};
/* Fills in a fault; `code` 0 becomes EIO. Always returns -1. */
int fail(struct fault *f, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* One line into shim.log, with the time. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

int64_t now_us(void); /* CLOCK_MONOTONIC */

/* ---- abilities (probe.c) ---- */
struct abilities {
  uint32_t bits; /* CAN_... */
  char reason[256]; /* why CAN_INJECTION is missing */
};
/* Tries all of it on a throw-away child. */
void probe_abilities(struct abilities *a);
/* Gives this process a filter that kills it where one of QEMU's or Firecracker's would. */
int forbid_clone_and_mmap(void);

/* ---- the VMM (spawn.c, record.c) ---- */
#define MAX_SOCKETS 8
#define MAX_ARGS 512
#define LAST_WORDS 4096

struct vmm {
  pid_t pid;
  uint64_t start_time; /* field 22 of /proc/PID/stat */
  int pidfd;
  bool adopted; /* not our child: its exit status is unknown */
  bool ended;
  uint32_t exit_kind; /* EXIT_... */
  uint32_t exit_value;
  uint32_t flags; /* START_... */
  char *sockets[MAX_SOCKETS]; /* names of the files that go when the shim ends */
  int socket_count;
};
extern struct vmm vmm;
extern struct abilities abilities;

struct start {
  uint32_t flags, uid, gid;
  char *argv[MAX_ARGS + 1];
  int argc;
};
/* Makes the sockets, starts the VMM, writes shim.json before the VMM's program begins. */
int spawn_vmm(struct start *s, struct fault *f);
/* Takes over a VMM whose shim died. */
int adopt_vmm(pid_t pid, uint64_t start_time, struct fault *f);
/* Removes the VMM's sockets and shim.sock. */
void remove_sockets(void);
int listen_at(const char *name, struct fault *f);

/* Field 22 of /proc/PID/stat; 0 when there is no such process. */
uint64_t start_time_of(pid_t pid);
/* shim.json: who runs here, for whoever comes later. */
int write_record(struct fault *f);
/* Last bytes of vmm.log; returns their number. */
size_t last_words(char *into, size_t room);
/* vmm.log is written by the VMM itself; this keeps it bounded. A descriptor to poll, -1 without inotify. */
int log_watch(void);
void log_trim(int watch);

/* ---- connections (conn.c) ---- */
struct conn;
struct reader {
  const uint8_t *at, *end;
  bool bad;
};
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
/* A copy with a NUL behind it, for the caller to free; NULL when the frame is bad or the text has a NUL in it. */
char *get_str(struct reader *r);

struct writer {
  uint8_t *data;
  size_t length, room;
};
void put_u32(struct writer *w, uint32_t value);
void put_u64(struct writer *w, uint64_t value);
void put_str(struct writer *w, const void *bytes, size_t length);

void conns_start(int first, int listener);
/* Adds descriptors to wait for; returns their number. */
struct pollfd;
int conns_poll(struct pollfd *into, int room);
/* Serves what has become readable. */
void conns_serve(const struct pollfd *polled, int count);
int conns_open(void);
void send_reply(struct conn *c, uint32_t type, uint32_t id, const struct writer *w);
void send_failure(struct conn *c, uint32_t type, uint32_t id, const struct fault *f);
/* To all connections, or to one of them. */
void send_event(struct conn *only, uint32_t type, const struct writer *w);

/* ---- requests (requests.c) ---- */
void handle_request(struct conn *c, uint32_t type, uint32_t id, struct reader *r);
void announce_exit(struct conn *only);
/* The connection is gone: what it armed is due. */
void conn_gone(struct conn *c);
extern bool end_requested;

/* ---- resume recipe (resume.c) ---- */
void resume_arm(struct conn *owner, char *socket, char **lines, int count, bool greets, uint32_t deadline_ms);
bool resume_disarm(void);
void resume_owner_gone(struct conn *owner);
/* The descriptor and events to wait for, and the time at which to call resume_step though nothing came; -1 for none. */
int resume_poll(short *events, int64_t *due_us);
void resume_step(short revents);

/* ---- mappings (maps.c) ---- */
struct mapping {
  uint64_t start, end, offset, inode;
  uint32_t major, minor;
  char perms[5];
  char name[256]; /* cut when longer */
};
/* Calls `each` for every line of /proc/PID/maps until it returns false. */
int maps_each(pid_t pid, bool (*each)(const struct mapping *m, void *arg), void *arg, struct fault *f);

struct ram_range {
  uint64_t guest_offset, length, address;
};
/* Mappings whose name contains `name`, joined where they go on, in guest order. Returns their number or -1. */
int find_ram(pid_t pid, const char *name, struct ram_range *into, int room, struct fault *f);

/* ---- graft (graft.c) ---- */
struct graft_extent {
  uint32_t kind, file;
  uint64_t file_offset, guest_offset, length;
};
struct graft_file {
  char *path;
  uint64_t bytes;
  int fd;
  void *view; /* the file, mapped here: what is copied, and how the kernel names its mappings */
  uint64_t inode;
  uint32_t major, minor;
};
struct graft {
  struct ram_range *ram;
  struct graft_file *files;
  struct graft_extent *extents;
  uint32_t ram_count, file_count, extent_count, timeout_ms;
  bool mapped; /* answer */
};
int graft(struct graft *g, struct fault *f);
/* Opens and maps the files; and the opposite. */
int graft_open_files(struct graft *g, struct fault *f);
void graft_close_files(struct graft *g);
/* Refuses extents outside guest RAM or past a file. */
int graft_check(const struct graft *g, struct fault *f);
void graft_free(struct graft *g);

/* ---- capture (capture.c, freeze.c) ---- */
struct capture_plan {
  bool live;
  bool patient; /* the memory may be copied before the pause, which comes later then */
  uint32_t origin; /* files of `below` from here on are newer than what the source was forked from */
  char *layer; /* absolute path of a file that does not exist yet */
  char *id, *since; /* of this capture, and of the one that `below` shows; empty where it is that of no capture */
  struct graft below; /* guest RAM, and what the source's last link shows */
};
/* Takes over what `plan` holds, also when it fails. */
int capture_prepare(struct conn *owner, struct capture_plan *plan, struct writer *answer, struct fault *f);
/* Begun; the reply follows through capture_step. */
int capture_freeze(struct conn *owner, uint32_t id, struct reader *r, struct fault *f);
int capture_copy(struct conn *owner, uint32_t id, struct fault *f);
/* Ends whatever there is. */
void capture_abort(void);
void capture_owner_gone(struct conn *owner);
bool capture_active(void);
/* A capture's thread waits for stops of the VMM: signals of children are its own until it is done. */
bool capture_takes_children(void);
/* Guest RAM is not marked DONTFORK any more. */
extern bool ram_forkable;
/* Lets a clone have guest RAM and nothing else of the VMM (forkable.c); and has the VMM's writes noticed from now on (written.c). */
int make_forkable(const struct graft *below, bool notice, struct fault *f);
/* The latter alone. Where it does not succeed nothing is noticed. */
void notice_writes(const struct graft *below);
/* The descriptor to wait for, -1 for none; and what to do when it is readable. */
int capture_poll(void);
void capture_step(void);

/* ---- the loop (main.c) ---- */
void reap(void);
/* The VMM has ended with this wait status; -1 when nobody knows. */
void vmm_ended(int status);
