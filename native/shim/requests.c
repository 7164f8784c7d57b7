/* What a daemon may ask. Frames are described in packages/wire/src/shim.ts. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

#define MAX_RANGES 64
#define MAX_LINES 16

struct abilities abilities;
bool end_requested;

static void put_info(struct writer *w) {
  put_u32(w, (uint32_t)getpid());
  put_u32(w, (uint32_t)vmm.pid);
  put_u64(w, start_time_of(getpid()));
  put_u64(w, vmm.start_time);
  put_u32(w, abilities.bits);
  put_u32(w, vmm.ended);
  put_str(w, abilities.reason, strlen(abilities.reason));
}

void announce_exit(struct conn *only) {
  char words[LAST_WORDS];
  struct writer w = {0};
  put_u32(&w, vmm.exit_kind);
  put_u32(&w, vmm.exit_value);
  put_str(&w, words, last_words(words, sizeof words));
  send_event(only, SF_EXITED, &w);
  free(w.data);
}

void conn_gone(struct conn *c) {
  resume_owner_gone(c); /* the VMM first */
  capture_owner_gone(c);
}

static int malformed(struct fault *f) { return fail(f, EPROTO, "a malformed request"); }
static int ended(struct fault *f) { return fail(f, ESRCH, "the VMM has ended"); }

/* ---- start ---- */

static void get_abilities(struct reader *r, uint32_t flags) {
  abilities.bits = get_u32(r);
  char *reason = get_str(r);
  if (reason) strncpy(abilities.reason, reason, sizeof abilities.reason - 1);
  free(reason);
  vmm.flags = flags;
}

static void get_sockets(struct reader *r, uint32_t count) {
  if (count > MAX_SOCKETS) r->bad = true;
  for (uint32_t i = 0; i < count && !r->bad; i++) {
    char *name = get_str(r);
    if (name) vmm.sockets[vmm.socket_count++] = name;
  }
}

static int start(struct reader *r, struct writer *w, struct fault *f) {
  struct start s = {0};
  s.flags = get_u32(r), s.uid = get_u32(r), s.gid = get_u32(r);
  get_abilities(r, s.flags);
  uint32_t argc = get_u32(r), sockets = get_u32(r);
  if (argc > MAX_ARGS) r->bad = true;
  for (uint32_t i = 0; i < argc && !r->bad; i++)
    if ((s.argv[s.argc] = get_str(r))) s.argc++;
  get_sockets(r, sockets);
  int result = r->bad ? malformed(f) : spawn_vmm(&s, f);
  for (int i = 0; i < s.argc; i++) free(s.argv[i]);
  if (result) return -1;
  if (!(s.flags & START_ABILITIES)) {
    probe_abilities(&abilities); /* while the VMM starts */
    write_record(f);
  }
  put_info(w);
  return 0;
}

static int adopt(struct reader *r, struct writer *w, struct fault *f) {
  uint32_t flags = get_u32(r), pid = get_u32(r);
  uint64_t start_time = get_u64(r);
  get_abilities(r, flags);
  get_sockets(r, get_u32(r));
  if (r->bad) return malformed(f);
  if (!(flags & START_ABILITIES)) probe_abilities(&abilities);
  if (adopt_vmm((pid_t)pid, start_time, f)) return -1;
  put_info(w);
  return 0;
}

/* ---- requests ---- */

static int search_ram(struct reader *r, struct writer *w, struct fault *f) {
  struct ram_range ranges[MAX_RANGES];
  char *name = get_str(r);
  int count = !name ? malformed(f) : *name == 0 ? fail(f, EINVAL, "an empty name") : vmm.ended ? ended(f) : find_ram(vmm.pid, name, ranges, MAX_RANGES, f);
  free(name);
  if (count < 0) return -1;
  put_u32(w, (uint32_t)count);
  for (int i = 0; i < count; i++) {
    put_u64(w, ranges[i].guest_offset);
    put_u64(w, ranges[i].length);
    put_u64(w, ranges[i].address);
  }
  return 0;
}

static void get_graft(struct reader *r, struct graft *g) {
  for (uint32_t i = 0; i < g->ram_count; i++) {
    g->ram[i].guest_offset = get_u64(r);
    g->ram[i].length = get_u64(r);
    g->ram[i].address = get_u64(r);
  }
  for (uint32_t i = 0; i < g->extent_count; i++) {
    struct graft_extent *e = &g->extents[i];
    e->kind = get_u32(r), e->file = get_u32(r);
    e->file_offset = get_u64(r), e->guest_offset = get_u64(r), e->length = get_u64(r);
  }
  for (uint32_t i = 0; i < g->file_count && !r->bad; i++) {
    g->files[i].bytes = get_u64(r);
    g->files[i].path = get_str(r);
  }
}

/* The whole of it; what it holds is the caller's to free, also after a failure. */
static int read_graft(struct reader *r, struct graft *g, struct fault *f) {
  *g = (struct graft){.ram_count = get_u32(r), .file_count = get_u32(r), .extent_count = get_u32(r), .timeout_ms = get_u32(r)};
  /* Counts that the frame cannot hold. */
  uint64_t least = (uint64_t)g->ram_count * 24 + (uint64_t)g->file_count * 12 + (uint64_t)g->extent_count * 32;
  if (r->bad || least > (uint64_t)(r->end - r->at)) return malformed(f);
  g->ram = calloc(g->ram_count + 1, sizeof *g->ram);
  g->files = calloc(g->file_count + 1, sizeof *g->files);
  g->extents = calloc(g->extent_count + 1, sizeof *g->extents);
  if (!g->ram || !g->files || !g->extents) return fail(f, ENOMEM, "no memory for %u extents", g->extent_count);
  for (uint32_t i = 0; i < g->file_count; i++) g->files[i].fd = -1;
  get_graft(r, g);
  return r->bad ? malformed(f) : vmm.ended ? ended(f) : 0;
}

static int do_graft(struct reader *r, struct writer *w, struct fault *f) {
  int64_t began = now_us();
  struct graft g;
  int result = read_graft(r, &g, f);
  if (result == 0 && capture_active()) result = fail(f, EBUSY, "a capture is under way");
  if (result == 0) result = graft(&g, f);
  if (result == 0) {
    put_u32(w, (uint32_t)(now_us() - began));
    put_u32(w, g.mapped);
  }
  graft_free(&g);
  return result;
}

static int prepare(struct conn *c, struct reader *r, struct writer *w, struct fault *f) {
  uint32_t live = get_u32(r);
  struct capture_plan plan = {.live = live != 0, .patient = live != 1, .origin = get_u32(r), .layer = get_str(r)};
  int result = read_graft(r, &plan.below, f);
  plan.id = get_str(r), plan.since = get_str(r);
  if (result == 0 && r->bad) result = malformed(f);
  if (result == 0) return capture_prepare(c, &plan, w, f);
  graft_free(&plan.below);
  free(plan.layer), free(plan.id), free(plan.since);
  return -1;
}

static int arm(struct conn *c, struct reader *r, struct fault *f) {
  uint32_t deadline = get_u32(r), count = get_u32(r), greets = get_u32(r);
  char *socket = get_str(r);
  if (count > MAX_LINES) r->bad = true;
  char **lines = calloc(MAX_LINES, sizeof *lines);
  if (!lines) r->bad = true;
  uint32_t have = 0;
  while (have < count && !r->bad)
    if ((lines[have] = get_str(r))) have++;
  if (!r->bad && !vmm.ended && strlen(socket) < 100 && !strchr(socket, '/')) {
    resume_arm(c, socket, lines, (int)count, greets != 0, deadline);
    return 0;
  }
  if (r->bad) malformed(f);
  else if (vmm.ended) ended(f);
  else fail(f, EINVAL, "\"%.100s\" is no socket in the run directory", socket);
  for (uint32_t i = 0; i < have; i++) free(lines[i]);
  free(lines);
  free(socket);
  return -1;
}

static int kill_vmm(struct fault *f) {
  if (vmm.ended) return 0;
  /* Through the pidfd: never another process that has got the number. */
  if (syscall(SYS_pidfd_send_signal, vmm.pidfd, SIGKILL, NULL, 0) == 0 || errno == ESRCH) return 0;
  return fail(f, errno, "kill process %d: %s", vmm.pid, strerror(errno));
}

void handle_request(struct conn *c, uint32_t type, uint32_t id, struct reader *r) {
  struct writer w = {0};
  struct fault f = {0, ""};
  int result = 0;
  bool later = false; /* the reply comes when it is done */
  bool begins = type == SF_START || type == SF_ADOPT;
  if (begins != (vmm.pid == 0)) result = fail(&f, EPROTO, begins ? "this shim has its VMM" : "this shim has no VMM yet");
  else switch (type) {
    case SF_START: result = start(r, &w, &f); break;
    case SF_ADOPT: result = adopt(r, &w, &f); break;
    case SF_HELLO: put_info(&w); break;
    case SF_FIND_RAM: result = search_ram(r, &w, &f); break;
    case SF_GRAFT: result = do_graft(r, &w, &f); break;
    case SF_ARM: result = arm(c, r, &f); break;
    case SF_DISARM: put_u32(&w, resume_disarm()); break;
    case SF_KILL: result = kill_vmm(&f); break;
    case SF_END: end_requested = true; break;
    case SF_CAPTURE_PREPARE: result = prepare(c, r, &w, &f); break;
    case SF_CAPTURE_FREEZE: result = capture_freeze(c, id, r, &f), later = true; break;
    case SF_CAPTURE_COPY: result = capture_copy(c, id, &f), later = true; break;
    case SF_CAPTURE_ABORT: capture_abort(); break;
    default: result = fail(&f, ENOSYS, "request %u is not known to this shim", type);
  }
  if (begins && result) remove_sockets(); /* nothing was begun: nothing stays */
  if (result) send_failure(c, type, id, &f);
  else if (!later) send_reply(c, type, id, &w);
  free(w.data);
  if (type == SF_HELLO && vmm.ended) announce_exit(c);
  if (begins && result) _exit(1);
}
