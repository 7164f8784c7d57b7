/*
 * Processes: what spawn.c, child.c, process*.c and group.c know of each other.
 *
 *   verb_spawn -> process_new -> fork -> child_run           P_STARTING: the child has not reached exec
 *              -> status pipe closes -> process_execed       P_RUNNING: RES sent, output is read
 *              -> or tells an error  -> spawn_failed         P_FAILED: RES was the error; kept until it is reaped
 *   process_reaped -> output drained -> process_finish       P_ENDED: DONE sent; kept until released or evicted
 */
#pragma once
#include "agent.h"

enum {
  MAX_PROCESSES = 256,
  COMMAND_KEPT = 512,    /* bytes of the command that ps shows, each argument with its NUL */
  LABEL_KEPT = 256,      /* with the NUL */
  READ_AT_ONCE = 65536,  /* per readiness event, so that one loud process does not starve others */
  GRACE_MS = 200,        /* how long descendants that hold a pipe may go on writing after the end */
  DYING_MS = 3000,       /* the same for descendants that were killed with it: giving back much memory takes a while */
  PTY_HOLDS = 131072,    /* more bytes than a pty can hold between its two ends */
  MAX_GROUPS = 64,       /* supplementary groups of a user */
};

enum process_state { P_FREE, P_STARTING, P_FAILED, P_RUNNING, P_ENDED };

struct process;

/* One slot that follows a process: its starter or an attacher. */
struct reader {
  struct slot *slot; /* NULL: not in use */
  struct process *process;
  struct reader *next; /* of the same process */
  bool opened;         /* RES with channels was sent */
  bool done;           /* DONE was given to the slot; the ring must live on until its release */
  bool reset;          /* asked to end before RES was sent */
};

/* stdout or stderr, or all output of a pty. */
struct output {
  struct watched watched; /* first, so that it can be cast back; fd -1 once closed */
  struct process *process;
  struct ring ring;
  uint32_t owed;  /* after the end: bytes that were in the pipe then and must still be delivered */
  bool watching;  /* in the loop */
  bool waiting;   /* not in the loop: the lossless reader has to acknowledge first */
  bool resting;   /* not in the loop: discarding, and has had its share for now */
  bool ended;     /* nothing more goes into the ring */
  bool held;      /* ended, but somebody still holds the other end: what he writes is thrown away */
};

struct input {
  struct watched watched; /* first; fd -1: none, or closed */
  struct process *process;
  struct reader *reader; /* whose channel 0 feeds it; NULL: nobody's */
  bool watching;
  bool mid_line;     /* pty: the last byte was not the end of a line */
  uint8_t eof_bytes; /* pty: EOF characters still to be written */
};

struct process {
  enum process_state state;
  uint32_t handle;
  pid_t pid;
  bool interpreter, pty, hidden /* released: no handle leads here */, reaped, held_open, grace_over;
  bool stopping;           /* killed by us for `reason` */
  uint32_t reason;         /* OUTCOME_TIMEOUT or OUTCOME_CANCELLED */
  uint32_t outcome[4];     /* kind, value, core, held open */
  uint64_t usage[4];       /* wall ns, user us, system us, rss KiB */
  uint64_t started_ns;     /* CLOCK_MONOTONIC */
  uint64_t ended_ms;
  struct watched status;   /* pipe that exec closes; fd -1 after */
  struct output output[2];
  int outputs;             /* 1 for a pty */
  struct input input;
  uint8_t *memory;         /* FK_PROCESS_RING bytes, shared by the rings */
  struct timer deadline, grace;
  struct reader *readers;  /* all that follow */
  struct reader *starter;  /* waits for RES */
  struct reader *lossless; /* whom the process waits for while a session is present */
  char label[LABEL_KEPT];
  char command[COMMAND_KEPT];
  size_t command_size;
};

#define PROCESS_OF(pointer, member) ((struct process *)((char *)(pointer) - offsetof(struct process, member)))

/* ---- users.c ---------------------------------------------------------------------------------------------------- */

struct user {
  uint32_t uid, gid;
  uint32_t groups[MAX_GROUPS];
  size_t group_count;
  char name[256], home[1024], shell[256];
};
/* Looks up `name`, `uid`, `uid:gid` (or `name:group`) in /etc/passwd and /etc/group. ST_OK, ST_INVALID or ST_NO_SUCH_USER. */
int user_find(const char *spec, struct user *out);

/* ---- child.c: between fork and exec. Only async-signal-safe work: other threads may hold any lock ---------------- */

enum step { STEP_GROUP, STEP_TERMINAL, STEP_STDIO, STEP_USER, STEP_CWD, STEP_EXEC, STEP_INTERPRETER };

/* What a child that cannot go on writes into the status pipe; less than PIPE_BUF, so in one piece. */
struct complaint {
  uint32_t step;
  int32_t err;
  char subject[1024];     /* path that failed */
  char interpreter[512];  /* STEP_INTERPRETER: the program that the subject asks for */
};

struct launch {
  char **argv, **env;
  const char *search;     /* value of PATH in env */
  const char *cwd;        /* NULL: home, or / where that is missing */
  const struct user *user;
  bool change_user, pty;
  int in, out, err;       /* -1: /dev/null */
  int status;             /* write end */
  int procs;              /* cgroup.procs to join, or -1 */
};
_Noreturn void child_run(const struct launch *l);

/* ---- environment.c ---------------------------------------------------------------------------------------------- */

/* Defaults, then hello's, then the request's; the last of a name wins. Fills launch->argv, env and search from the request. False after slot_fail. */
bool environment_build(struct slot *s, const struct fields *f, const struct user *u, bool pty, struct launch *l);

/* ---- spawn.c ---------------------------------------------------------------------------------------------------- */

/* Tells the starter why the child did not reach exec. */
void spawn_failed(struct slot *s, const struct complaint *c);

/* ---- process.c -------------------------------------------------------------------------------------------------- */

/* A blank entry with a new handle and its ring, evicting an ended one if need be. NULL: all 256 are in use, or (errno ENOMEM) no memory. */
struct process *process_new(bool pty);
/* Lets go of an entry's memory and descriptors. Nobody may follow it. */
void process_free(struct process *p);
/* The entry of a handle that can be addressed; NULL when there is none. */
struct process *process_find(uint32_t handle);
/* The entry at a place of the table, 0 to MAX_PROCESSES - 1. */
struct process *process_at(size_t index);
/* True while the main process of this handle has not been reaped. */
bool process_runs(uint32_t handle);
/* Watches a forked child. */
void process_forked(struct process *p, pid_t pid, int status_fd, uint32_t timeout_ms);
/* Kills the whole group for a reason that its outcome will tell. */
void process_stop(struct process *p, uint32_t reason);
/* Ends the call when the main process was reaped and all that is owed has been read. */
void process_settle(struct process *p);
/* Frees the entry if nothing needs it any more. */
void process_forget(struct process *p);

/* ---- process_readers.c ------------------------------------------------------------------------------------------ */

/* Makes the slot follow the process. Channels are opened by reader_open. */
struct reader *reader_new(struct slot *s, struct process *p);
/* Opens the channels: from the oldest byte kept, or from now on. The caller sends RES after it, then calls reader_catch_up. */
void reader_open(struct reader *r, bool input, bool from_now);
/* Tells a reader of ends that came before it. */
void reader_catch_up(struct reader *r);
/* DONE: how the process ended (ST_OK), or that the reader has left (ST_CANCELLED), which also drops it. */
void reader_done(struct reader *r, int status);
void reader_drop(struct reader *r);

/* ---- process_output.c ------------------------------------------------------------------------------------------- */

void output_start(struct output *o, int fd);
/* Reads on where a lossless reader no longer stands in the way. */
void output_resume(struct process *p);
/* The main process ended: notes what its pipe still owes. */
void output_owe(struct output *o);
/* The grace is over: gives up an output that somebody else holds open. */
void output_expire(struct output *o);
void output_close(struct output *o);

/* ---- process_input.c -------------------------------------------------------------------------------------------- */

void input_start(struct input *i, int fd);
/* From now on it is this reader's channel 0 that is fed to the process. */
void input_take(struct process *p, struct reader *r);
/* Channel 0 of a reader has something, or has ended. */
void input_news(struct reader *r);
void input_leave(struct process *p, const struct reader *r);
void input_close(struct input *i);

/* ---- group.c, besides agent.h ----------------------------------------------------------------------------------- */

/* An fd of the group's directory, for CLONE_INTO_CGROUP; -1 when not real. */
int group_directory(uint32_t handle, bool interpreter);
/* Sends a signal to each process in it. How many were reached. */
int group_signal(uint32_t handle, bool interpreter, int signal);
/* An orphan was reaped: perhaps a group that outlived its process is empty now. */
void group_orphan_reaped(void);
