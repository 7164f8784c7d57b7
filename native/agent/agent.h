/*
 * What the parts of the agent know of each other.
 *
 *   main.c     command line, epoll loop, timers; as pid 1 runs init.c first
 *   init.c     pid 1: modules, disks, overlay root, mounts, cgroups; then the loop
 *   conn.c     the transport: SYNC scanner, frame parser, partial writes
 *   session.c  frames from the host: requests, ids, acknowledgements, replay     send.c  what to send next
 *   slots.c    requests as verbs see them: answer, channels, end      verbs.c  which verb is whose
 *   machine's start (pid 1): init.c the order, devices.c modules and disks, mounts.c file systems
 *   fields.c   fields of a payload, read and built
 *   ring.c     byte rings addressed by absolute offset
 *   spawn.c    starting a process        process.c  its life: output, timeout, end, attach
 *   group.c    cgroups: limits, freeze, kill, oom
 *   jobs.c     jobs of verbs that may block: queue, channels, cancellation      job_worker.c  their threads, what bodies call
 *   files.c    READ WRITE STAT LIST MKDIR RENAME REMOVE SYMLINK SETATTR (jobs)
 *   watch.c    WATCH    dial.c  DIAL    machine.c  HELLO and the other machine verbs    metrics.c  METRICS
 *
 * The main thread runs everything but the bodies of jobs. No allocation after start, but for the ring of a process (mmap at its start).
 */
#pragma once
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol.gen.h"

/* ---- fields.c ------------------------------------------------------------------------------------------------- */

/* A request's fields, checked as a whole before a verb sees them. */
struct fields {
  const uint8_t *data;
  size_t size;
};
struct field {
  uint16_t tag;
  uint32_t length;
  const uint8_t *bytes;
};
/* Steps through fields: set `at` to 0 first. False at the end. */
bool fields_next(const struct fields *f, size_t *at, struct field *out);
/* True when every field is whole and of a known tag with the length that its tag has. */
bool fields_valid(const struct fields *f);
/* The first field of a tag. */
bool fields_find(const struct fields *f, uint16_t tag, struct field *out);
uint32_t fields_u32(const struct fields *f, uint16_t tag, uint32_t otherwise);
uint64_t fields_u64(const struct fields *f, uint16_t tag, uint64_t otherwise);
/* Copies a byte string with a NUL after it. 0, or ST_INVALID (absent, or has a NUL), or ST_TOO_LONG. */
int fields_string(const struct fields *f, uint16_t tag, char *to, size_t capacity);

/* Builds a payload; `overflow` is set once it does not fit, and stays. */
struct out {
  uint8_t bytes[FK_MAX_RESPONSE];
  size_t size;
  bool overflow;
};
void out_bytes(struct out *o, uint16_t tag, const void *bytes, size_t length);
void out_u32(struct out *o, uint16_t tag, uint32_t value);
void out_u64(struct out *o, uint16_t tag, uint64_t value);

/* ---- ring.c: the last `capacity` bytes of a stream, addressed by offset from its start --------------------------- */

struct ring {
  uint8_t *bytes;
  size_t capacity;
  uint64_t first; /* oldest byte kept */
  uint64_t end;   /* one past the newest */
};
size_t ring_space(const struct ring *r);
/* Appends up to the space there is; returns how many bytes. */
size_t ring_write(struct ring *r, const void *bytes, size_t length);
/* Drops the oldest bytes until `length` more fit. */
void ring_make_room(struct ring *r, size_t length);
/* Points at the bytes from `offset` that lie together; returns how many. */
size_t ring_peek(const struct ring *r, uint64_t offset, const uint8_t **bytes);
/* Forgets what lies before `offset`. */
void ring_forget(struct ring *r, uint64_t offset);

/* ---- slots.c --------------------------------------------------------------------------------------------------- */

struct slot;
/* What a verb that goes on after its RES is told. All may be NULL. */
struct slot_ops {
  void (*input)(struct slot *s);              /* bytes or the end have come in channel 0 */
  void (*writable)(struct slot *s, int channel); /* output has been acknowledged: there is room again */
  void (*reset)(struct slot *s);              /* the host wants no more: stop, then slot_done(s, ST_CANCELLED, ...) soon */
  void (*release)(struct slot *s);            /* the slot is about to be free (FIN, or the session is over): let go of everything now */
};
struct slot *slot_of(uint32_t index);
uint32_t slot_index(const struct slot *s);
void slot_set(struct slot *s, const struct slot_ops *ops, void *context);
void *slot_context(const struct slot *s);
/* RES. `o` may be NULL. After a failure the request is over. After success of a verb without channels too. */
void slot_reply(struct slot *s, const struct out *o);
void slot_fail(struct slot *s, int status, int err, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Says that channels follow: input: channel 0 is open for the host. outputs: 0, 1 or 2 channels. Before slot_reply. */
void slot_open(struct slot *s, bool input, int outputs);
/* Channel 0: bytes that arrived and were not consumed. Consuming opens the window. */
size_t slot_input(struct slot *s, const uint8_t **bytes);
void slot_consume(struct slot *s, size_t length);
bool slot_input_ended(const struct slot *s); /* EOF came and all is consumed */
/* Channels 1 and 2: a ring of 256 KiB of the slot's own. Returns how many bytes were taken. */
size_t slot_write(struct slot *s, int channel, const void *bytes, size_t length);
size_t slot_space(const struct slot *s, int channel);
void slot_end(struct slot *s, int channel);
/* Or a ring of somebody else's (a process): the slot sends it from `offset` on; call slot_kick when bytes were added. */
void slot_use_ring(struct slot *s, int channel, struct ring *r, uint64_t offset);
/* The lowest offset that the host has not acknowledged. */
uint64_t slot_acknowledged(const struct slot *s, int channel);
void slot_kick(struct slot *s);
/* DONE, sent after all output. `o` may be NULL; with a failing status, put F_MESSAGE in it. */
void slot_done(struct slot *s, int status, int err, const struct out *o);
/* True while a host is connected, or broke off less than 10 s ago: lossless readers are waited for. */
bool session_present(void);

/* Starts a verb on the main thread. Must reply or fail now or later. */
void verb_dispatch(struct slot *s, uint16_t verb, const struct fields *f);

/* ---- main.c ---------------------------------------------------------------------------------------------------- */

/* Something the loop watches. Embed it; `ready` gets the epoll events. */
struct watched {
  int fd;
  void (*ready)(struct watched *w, uint32_t events);
};
int loop_add(struct watched *w, uint32_t events);
int loop_change(struct watched *w, uint32_t events);
void loop_remove(struct watched *w);
void loop_stop(int code); /* host-side: ends the agent after this turn */
/* A deadline, CLOCK_BOOTTIME-independent (CLOCK_MONOTONIC), ms from now. One shot. */
struct timer {
  uint64_t at_ms; /* 0: off */
  void (*fire)(struct timer *t);
  struct timer *next;
};
void timer_set(struct timer *t, uint64_t after_ms);
void timer_clear(struct timer *t);
uint64_t now_ms(void);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Options of the process: `real` is false in the host-side build used by tests, where nothing of the machine is touched. */
struct options {
  bool real;
  const char *root; /* where files of the guest are; "/" when real */
};
extern struct options options;

/* ---- jobs.c: a verb's body on a worker thread ------------------------------------------------------------------ */

struct job;
/* Runs on a worker; returns through job_fail/job_reply/job_done exactly as a verb would with slot_*. */
typedef void job_body(struct job *j, const struct fields *f);
/* Queues the body; copies the request. Every request that there can be may wait for a worker. 16 workers, started with the first job after boot. */
void job_start(struct slot *s, job_body *body, bool input, bool output);
void job_reply(struct job *j, const struct out *o);
void job_fail(struct job *j, int status, int err, const char *format, ...) __attribute__((format(printf, 4, 5)));
void job_done(struct job *j, int status, int err, const struct out *o);
/* Blocks until all of it is in the output ring. False when the request was reset or the session is over. */
bool job_write(struct job *j, const void *bytes, size_t length);
/* Blocks for input. Bytes read, 0 at the end, -1 when reset or over. */
ssize_t job_read(struct job *j, void *bytes, size_t capacity);
bool job_cancelled(struct job *j);

/* ---- verbs ----------------------------------------------------------------------------------------------------- */

void verb_spawn(struct slot *s, const struct fields *f);
void verb_attach(struct slot *s, const struct fields *f);
void verb_ps(struct slot *s, const struct fields *f);
void verb_signal(struct slot *s, const struct fields *f);
void verb_resize(struct slot *s, const struct fields *f);
void verb_release(struct slot *s, const struct fields *f);
void verb_file(struct slot *s, uint16_t verb, const struct fields *f);
void verb_watch(struct slot *s, const struct fields *f);
void verb_dial(struct slot *s, const struct fields *f);
void verb_machine(struct slot *s, uint16_t verb, const struct fields *f);
void verb_metrics(struct slot *s, const struct fields *f);
/* The guest's status for an errno, such as ST_NOT_FOUND for ENOENT. */
int status_of_errno(int err);

/* process.c: a child was reaped (main.c reaps all). */
void process_reaped(pid_t pid, int status, const void *rusage);
/* Number of processes of the table that run. */
int process_count(void);

/* machine.c: what hello told. */
const char *hello_env(size_t index); /* NAME=value, or NULL after the last */

/* group.c. Paths are below /sys/fs/cgroup/forkd: user/<handle>, interp/<handle>. All do nothing when not real. */
int group_setup(void);                                        /* after mounts: limits of memory and pids for both */
int group_open(uint32_t handle, bool interpreter);            /* makes it; returns an fd of its cgroup.procs, or -1 */
void group_kill(uint32_t handle, bool interpreter);           /* every process in it, whatever its session */
void group_close(uint32_t handle, bool interpreter);
bool group_oom_killed(uint32_t handle, bool interpreter);     /* since it was made */
void group_freeze(bool interpreters, bool user, bool frozen);
void group_memory(uint64_t *limit, uint64_t *used, uint64_t *oom_kills);

/* conn.c */
/* Watches the transport: a device path, or an open fd: a stream, or a listening socket of which the newest connection counts. */
int conn_open(const char *device, int fd);
void conn_kick(void);                      /* there may be something to send */
bool conn_trickles(void);                  /* of late only output flows, in small pieces */
bool conn_step(void);                      /* reads, tells verbs, writes; true when there is more to do at once */

/* init.c: pid 1 only. Prints to the console and stops the machine where it cannot go on. */
void init_machine(void);
/* Opens the agent's virtio-serial port, or listens on vsock port 52 where there is none. */
void init_transport(void);
