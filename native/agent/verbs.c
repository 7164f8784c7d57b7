/* Which part of the agent a verb belongs to. */
#include "agent.h"

void verb_dispatch(struct slot *s, uint16_t verb, const struct fields *f) {
  switch (verb) {
    case V_SPAWN: verb_spawn(s, f); return;
    case V_ATTACH: verb_attach(s, f); return;
    case V_PS: verb_ps(s, f); return;
    case V_SIGNAL: verb_signal(s, f); return;
    case V_RESIZE: verb_resize(s, f); return;
    case V_RELEASE: verb_release(s, f); return;
    case V_READ: case V_WRITE: case V_STAT: case V_LIST: case V_MKDIR: case V_RENAME: case V_REMOVE: case V_SYMLINK:
    case V_SETATTR:
      verb_file(s, verb, f);
      return;
    case V_WATCH: verb_watch(s, f); return;
    case V_DIAL: verb_dial(s, f); return;
    case V_METRICS: verb_metrics(s, f); return;
    case V_HELLO: case V_SET_TIME: case V_ADD_ENTROPY: case V_SET_HOSTNAME: case V_FREEZE: case V_THAW:
    case V_SYNC_DISKS: case V_POWEROFF:
      verb_machine(s, verb, f);
      return;
    default:
      slot_fail(s, ST_UNSUPPORTED, 0, "verb %u is unknown to this agent (protocol %d): host and guest image differ in version",
                verb, FK_VERSION);
  }
}
