/* Lays a snapshot's memory over the RAM of a loaded, still paused VMM: long extents as private mappings, short ones as copies. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "graft-copy.h"
#include "inject.h"
#include "segments.h"
#include "written.h"

#define MAX_FILES 64 /* far below what one message of descriptors carries (253) */

/* The scratch memory in the VMM: first what recvmsg needs, then the calls. */
struct scratch {
  int pair[2];
  struct msghdr message;
  struct iovec vector;
  char byte;
  union {
    struct cmsghdr header;
    uint8_t room[CMSG_SPACE(MAX_FILES * sizeof(int))];
  } control;
};
#define CALLS_AT 4096

uint64_t graft_address(const struct graft *g, const struct graft_extent *e) {
  for (uint32_t i = 0; i < g->ram_count; i++) {
    const struct ram_range *r = &g->ram[i];
    if (e->guest_offset >= r->guest_offset && e->guest_offset - r->guest_offset < r->length &&
        e->length <= r->length - (e->guest_offset - r->guest_offset))
      return r->address + (e->guest_offset - r->guest_offset);
  }
  return 0;
}

/* Refuses what would map or read past an end, and a mapping that would cover what was copied before it. */
int graft_check(const struct graft *g, struct fault *f) {
  uint64_t copied_to = 0;
  for (uint32_t i = 0; i < g->extent_count; i++) {
    const struct graft_extent *e = &g->extents[i];
    if (((e->guest_offset | e->length | e->file_offset) & 4095) || e->length == 0 || e->kind > EXTENT_ZERO)
      return fail(f, EINVAL, "extent %u is not made of whole pages", i);
    if (!graft_address(g, e)) return fail(f, EINVAL, "extent %u (%llu bytes at %llu) is outside guest RAM", i,
                                       (unsigned long long)e->length, (unsigned long long)e->guest_offset);
    if (e->kind != EXTENT_ZERO && (e->file >= g->file_count || e->file_offset > g->files[e->file].bytes ||
                                   e->length > g->files[e->file].bytes - e->file_offset))
      return fail(f, EINVAL, "extent %u ends past its file", i);
    if (e->kind != EXTENT_COPY && e->guest_offset < copied_to) return fail(f, EINVAL, "extent %u would cover a copy made before it", i);
    if (e->kind == EXTENT_COPY && e->guest_offset + e->length > copied_to) copied_to = e->guest_offset + e->length;
  }
  return 0;
}

struct self_view {
  struct graft_file *file;
};
static bool see_view(const struct mapping *m, void *arg) {
  struct graft_file *file = ((struct self_view *)arg)->file;
  if (m->start > (uintptr_t)file->view || m->end <= (uintptr_t)file->view) return true;
  file->inode = m->inode, file->major = m->major, file->minor = m->minor;
  return false;
}

/* Opens and maps each file here. How the kernel names our mapping is how it will name the VMM's: stat's numbers differ on some file systems. */
int graft_open_files(struct graft *g, struct fault *f) {
  for (uint32_t i = 0; i < g->file_count; i++) g->files[i].fd = -1;
  if (g->file_count > MAX_FILES) return fail(f, EINVAL, "%u files, at most %d", g->file_count, MAX_FILES);
  for (uint32_t i = 0; i < g->file_count; i++) {
    struct graft_file *file = &g->files[i];
    struct stat st;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0 || fstat(file->fd, &st)) return fail(f, errno, "open %s: %s", file->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < file->bytes)
      return fail(f, EINVAL, "%s has %lld bytes, the snapshot needs %llu", file->path, (long long)st.st_size, (unsigned long long)file->bytes);
    if (file->bytes == 0) continue;
    file->view = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file->fd, 0);
    if (file->view == MAP_FAILED) return fail(f, errno, "map %s: %s", file->path, strerror(errno));
    struct self_view see = {file};
    if (maps_each(getpid(), see_view, &see, f)) return -1;
  }
  return 0;
}

void graft_close_files(struct graft *g) {
  for (uint32_t i = 0; i < g->file_count; i++) {
    struct graft_file *file = &g->files[i];
    if (file->view && file->view != MAP_FAILED) munmap(file->view, file->bytes);
    if (file->fd >= 0) close(file->fd);
    file->fd = -1, file->view = NULL;
  }
}

/* ---- by injection ---- */

struct mapping_job {
  struct graft *g;
  int fds[MAX_FILES]; /* the files' numbers in the VMM */
  uint64_t scratch, size;
};

static int injected(struct inject *in, const char *what, int64_t *result, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                    uint64_t e, uint64_t g) {
  if (inject_call(in, result, number, a, b, c, d, e, g)) return -1;
  if (*result < 0 && *result > -4096) return fail(in->fault, (int)-*result, "%s in the VMM: %s", what, strerror((int)-*result));
  return 0;
}

static int send_files(int to, const struct graft *g, struct fault *f) {
  char byte = 0;
  struct iovec vector = {&byte, 1};
  union {
    struct cmsghdr header;
    uint8_t room[CMSG_SPACE(MAX_FILES * sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(g->file_count * sizeof(int))};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(g->file_count * sizeof(int));
  for (uint32_t i = 0; i < g->file_count; i++) memcpy(CMSG_DATA(header) + i * sizeof(int), &g->files[i].fd, sizeof(int));
  return sendmsg(to, &message, MSG_NOSIGNAL) == 1 ? 0 : fail(f, errno, "pass descriptors to the VMM: %s", strerror(errno));
}

/* A socket between the VMM and us, without a name that its user, network namespace or root directory could keep it from. Ours in *ours. */
static int join(struct inject *in, const struct mapping_job *job, struct scratch *s, int *ours) {
  int64_t result;
  uint64_t at = job->scratch + offsetof(struct scratch, pair);
  if (injected(in, "socketpair", &result, SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, at, 0, 0)) return -1;
  if (target_read(in, at, s->pair, sizeof s->pair)) return -1;
  int pidfd = (int)syscall(SYS_pidfd_open, in->pid, 0);
  if (pidfd < 0) return fail(in->fault, errno, "pidfd of the VMM: %s", strerror(errno));
  *ours = (int)syscall(SYS_pidfd_getfd, pidfd, s->pair[1], 0);
  int error = errno;
  close(pidfd);
  return *ours < 0 ? fail(in->fault, error, "take a descriptor of the VMM: %s", strerror(error)) : 0;
}

static int receive_files(struct inject *in, struct mapping_job *job, struct scratch *s) {
  const struct graft *g = job->g;
  uint64_t at = job->scratch;
  int64_t result;
  s->vector = (struct iovec){(void *)(at + offsetof(struct scratch, byte)), 1};
  s->message = (struct msghdr){.msg_iov = (void *)(at + offsetof(struct scratch, vector)), .msg_iovlen = 1,
                               .msg_control = (void *)(at + offsetof(struct scratch, control)), .msg_controllen = sizeof s->control};
  if (target_write(in, at, s, sizeof *s)) return -1;
  if (injected(in, "recvmsg", &result, SYS_recvmsg, (uint64_t)s->pair[0], at + offsetof(struct scratch, message), MSG_CMSG_CLOEXEC | MSG_DONTWAIT, 0, 0, 0)) return -1;
  if (target_read(in, at, s, sizeof *s)) return -1;
  if (s->control.header.cmsg_type != SCM_RIGHTS || s->control.header.cmsg_len != CMSG_LEN(g->file_count * sizeof(int)))
    return fail(in->fault, EMFILE, "the VMM could not take %u descriptors (its limit of open files?)", g->file_count);
  memcpy(job->fds, CMSG_DATA(&s->control.header), g->file_count * sizeof(int));
  return 0;
}

static size_t list_calls(const struct mapping_job *job, const struct scratch *s, struct call *calls) {
  const struct graft *g = job->g;
  size_t n = 0;
  for (uint32_t i = 0; i < g->extent_count; i++) {
    const struct graft_extent *e = &g->extents[i];
    if (e->kind == EXTENT_COPY) continue;
    bool map = e->kind == EXTENT_MAP;
    uint64_t flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (map ? 0 : MAP_ANONYMOUS);
    calls[n++] = (struct call){SYS_mmap, {graft_address(g, e), e->length, PROT_READ | PROT_WRITE, flags, map ? (uint64_t)job->fds[e->file] : UINT64_MAX, map ? e->file_offset : 0}, -1};
  }
  for (uint32_t i = 0; i < g->ram_count; i++) {
    /* As the VMM had it: RAM is no part of a core file. And what a later freeze needs. */
    calls[n++] = (struct call){SYS_madvise, {g->ram[i].address, g->ram[i].length, MADV_DONTDUMP}, -1};
    calls[n++] = (struct call){SYS_madvise, {g->ram[i].address, g->ram[i].length, MADV_DOFORK}, -1};
  }
  for (uint32_t i = 0; i < g->file_count; i++) calls[n++] = (struct call){SYS_close, {(uint64_t)job->fds[i]}, -1};
  calls[n++] = (struct call){SYS_close, {(uint64_t)s->pair[1]}, -1};
  calls[n++] = (struct call){SYS_close, {(uint64_t)s->pair[0]}, 0}; /* the last one: its end becomes readable here */
  calls[n] = (struct call){CALL_END, {0}, 0};
  return n;
}

static int check_results(const struct call *calls, size_t n, struct fault *f) {
  for (size_t i = 0; i < n; i++) {
    int64_t r = calls[i].result;
    if (r < 0 && r > -4096)
      return fail(f, (int)-r, "system call %llu of the graft (%zu of %zu) failed in the VMM: %s", (unsigned long long)calls[i].number, i + 1, n, strerror((int)-r));
    if (calls[i].number == SYS_mmap && (uint64_t)r != calls[i].args[0]) return fail(f, EIO, "a mapping of the graft lies elsewhere");
  }
  return 0;
}

static int map_all(struct inject *in, struct mapping_job *job, struct call *calls) {
  struct scratch s;
  int ours = -1;
  memset(&s, 0, sizeof s);
  if (join(in, job, &s, &ours)) return -1;
  int result = send_files(ours, job->g, in->fault);
  if (result == 0) result = receive_files(in, job, &s);
  if (result == 0) {
    size_t n = list_calls(job, &s, calls), bytes = (n + 1) * sizeof *calls;
    result = target_write(in, job->scratch + CALLS_AT, calls, bytes);
    if (result == 0) result = inject_batch(in, job->scratch + CALLS_AT, ours);
    if (result == 0) result = target_read(in, job->scratch + CALLS_AT, calls, bytes);
    if (result == 0) result = check_results(calls, n - 1, in->fault);
  }
  close(ours);
  return result;
}

static int map_body(struct inject *in, void *arg) {
  struct mapping_job *job = arg;
  size_t most = job->g->extent_count + 2 * job->g->ram_count + job->g->file_count + 3;
  struct call *calls = calloc(most, sizeof *calls);
  int64_t at, ignored;
  if (!calls) return fail(in->fault, ENOMEM, "no memory for %zu calls", most);
  job->size = (CALLS_AT + most * sizeof *calls + 4095) & ~4095ull;
  int result = injected(in, "mmap", &at, SYS_mmap, 0, job->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX, 0);
  if (result == 0) {
    job->scratch = (uint64_t)at;
    result = map_all(in, job, calls);
    struct fault ignore, *first = in->fault;
    if (result) in->fault = &ignore;
    if (!in->ended && inject_call(in, &ignored, SYS_munmap, job->scratch, job->size, 0, 0, 0, 0)) result = -1;
    in->fault = first;
  }
  free(calls);
  return result;
}

/* ---- the mappings are what was asked for ---- */

static int verify(const struct graft *g, struct fault *f) {
  struct segments want = {0};
  int result = 0;
  for (uint32_t i = 0; i < g->extent_count && result == 0; i++) {
    const struct graft_extent *e = &g->extents[i];
    if (e->kind == EXTENT_COPY) continue;
    const struct graft_file *file = e->kind == EXTENT_MAP ? &g->files[e->file] : NULL;
    uint64_t start = graft_address(g, e);
    struct segment s = {start, start + e->length, file ? e->file_offset : 0, file ? file->inode : 0, file ? file->major : 0, file ? file->minor : 0};
    result = segments_paint(&want, s) ? fail(f, ENOMEM, "no memory to verify the graft") : 0;
  }
  if (result == 0) result = segments_verify(&want, vmm.pid, f);
  segments_free(&want);
  return result;
}

void graft_free(struct graft *g) {
  for (uint32_t i = 0; g->files && i < g->file_count; i++) free(g->files[i].path);
  free(g->ram), free(g->files), free(g->extents);
  memset(g, 0, sizeof *g);
}

int graft(struct graft *g, struct fault *f) {
  int result = graft_check(g, f);
  if (result == 0) result = graft_open_files(g, f);
  if (result == 0) {
    bool suspend = abilities.bits & CAN_INJECTION;
    g->mapped = suspend || ((abilities.bits & CAN_ATTACH) && (vmm.flags & START_MAPS_ALLOWED));
    if (g->mapped) {
      struct mapping_job job = {.g = g};
      written_forget(); /* of what is mapped now nothing was noticed */
      result = inject_run(vmm.pid, suspend ? INJECT_SUSPEND_FILTER : 0, (int)g->timeout_ms, map_body, &job, f);
      if (result == 0) result = verify(g, f);
      if (result == 0) ram_forkable = true; /* DOFORK was among the calls */
    }
  }
  if (result == 0) result = graft_copy(g, f);
  graft_close_files(g);
  return result;
}
