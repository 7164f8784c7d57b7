/*
 * The pause of a branch, as one piece: commands to the VMM before the freeze and after it, each sent as soon as the one before is answered, and
 * copies of its disk. No daemon has to be waited for in it, and whoever dies or is late, the VMM is resumed by the thread that has paused it.
 */
#define _GNU_SOURCE
#include "pause.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk-copy.h"

/* What is sent when the pause is over gets so long, whatever the time of the pause was. */
#define RESUME_US 5000000

int pause_read(struct pause *p, struct reader *r, struct fault *f) {
  p->monitor.fd = -1;
  p->deadline_ms = get_u32(r);
  p->monitor.speaks = get_u32(r);
  uint32_t before = get_u32(r), after = get_u32(r);
  p->socket = get_str(r);
  p->freeze_at = get_str(r);
  if (before > PAUSE_STEPS || after > PAUSE_STEPS - before || p->monitor.speaks > SPEAKS_HTTP) r->bad = true;
  for (uint32_t i = 0; i < before + after && !r->bad; i++) {
    struct pause_step *s = &p->list[i];
    p->before += i < before, p->after += i >= before;
    s->kind = get_u32(r);
    s->text = get_str(r);
    s->to = get_str(r);
    if (s->kind > STEP_COPY) r->bad = true;
  }
  if (r->bad) return fail(f, EPROTO, "a malformed request");
  if (*p->freeze_at && (before == 0 || p->list[before - 1].kind != STEP_COMMAND)) return fail(f, EINVAL, "no command opens \"%.100s\"", p->freeze_at);
  return strlen(p->socket) < 100 && !strchr(p->socket, '/') ? 0 : fail(f, EINVAL, "\"%.100s\" is no socket in the run directory", p->socket);
}

const char *pause_frozen_command(const struct pause *p) { return p->list[p->before - 1].text; }

static int step(struct pause *p, const struct pause_step *s, int64_t due, struct fault *f) {
  int64_t began = now_us();
  int result = s->kind == STEP_COPY ? disk_copy(s->text, s->to, due, p->cancel, f) : monitor_command(&p->monitor, s->text, due, f);
  p->took_us[p->steps++] = (uint32_t)(now_us() - began);
  return result;
}

static int freeze_step(struct pause *p, int (*freeze)(void)) {
  int64_t began = now_us();
  int result = freeze();
  p->took_us[p->steps++] = (uint32_t)(now_us() - began);
  return result;
}

/* Copies that a failed pause has made. */
static void remove_copies(const struct pause *p, int done) {
  for (int i = 0; i < done; i++)
    if (p->list[i].kind == STEP_COPY) unlink(p->list[i].to);
}

int pause_around(struct pause *p, int (*freeze)(void), struct fault *f) {
  int64_t due = p->due_us = now_us() + (int64_t)p->deadline_ms * 1000;
  if (monitor_open(&p->monitor, p->socket, due, f)) return -1;
  int alone = p->before - (*p->freeze_at ? 1 : 0), done = 0, result = 0;
  due = p->due_us = now_us() + (int64_t)p->deadline_ms * 1000;
  while (done < alone && (result = step(p, &p->list[done], due, f)) == 0) done++;
  if (result == 0) result = freeze_step(p, freeze);
  /* Whatever failed: the VMM goes on. The first failure is the one that is told. */
  struct answer answer = p->answer;
  char *kept = answer.length ? strndup(answer.text, answer.length) : NULL;
  for (int i = p->before; i < p->before + p->after; i++) {
    struct fault later;
    if (step(p, &p->list[i], now_us() + RESUME_US, result ? &later : f)) result = -1;
  }
  p->answer = (struct answer){answer.refused, answer.status, kept, kept ? strlen(kept) : 0};
  if (result) remove_copies(p, done);
  monitor_close(&p->monitor); /* it may take one connection at a time */
  return result;
}

void pause_free(struct pause *p) {
  if (p->socket) monitor_close(&p->monitor);
  for (int i = 0; i < p->before + p->after; i++) free(p->list[i].text), free(p->list[i].to);
  free((char *)p->answer.text);
  free(p->freeze_at);
  free(p->socket);
  memset(p, 0, sizeof *p);
}
