/* Which part of the agent a verb belongs to, and what an errno is called on the wire. */
#include "agent.h"
#include <errno.h>

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

int status_of_errno(int err) {
  switch (err) {
    case 0: return ST_OK;
    case ENOENT: return ST_NOT_FOUND;
    case EACCES: case EPERM: return ST_PERMISSION;
    case ENOEXEC: return ST_NOT_EXECUTABLE;
    case ENOTDIR: return ST_NOT_A_DIRECTORY;
    case EISDIR: return ST_IS_A_DIRECTORY;
    case EEXIST: return ST_EXISTS;
    case ENOTEMPTY: return ST_NOT_EMPTY;
    case ENOSPC: case EDQUOT: return ST_NO_SPACE;
    case EROFS: return ST_READ_ONLY;
    case EFBIG: case E2BIG: case EOVERFLOW: return ST_TOO_LARGE;
    case ENAMETOOLONG: return ST_TOO_LONG;
    case EBUSY: case EAGAIN: case ETXTBSY: case EMFILE: case ENFILE: return ST_BUSY;
    case EINVAL: case EBADF: case ENODEV: case ENOTTY: case EXDEV: case ESPIPE: return ST_INVALID;
    case ENOSYS: case EOPNOTSUPP: return ST_UNSUPPORTED;
    case ESRCH: case ECHILD: return ST_NO_SUCH_PROCESS;
    case ECONNREFUSED: case ENETUNREACH: case EHOSTUNREACH: case EADDRNOTAVAIL: return ST_REFUSED;
    case ELOOP: return ST_LOOP;
    case ETIMEDOUT: return ST_TIMEOUT;
    case ENOMEM: return ST_NO_MEMORY;
    case EPIPE: case ECONNRESET: case ESHUTDOWN: case ENOTCONN: return ST_CLOSED;
    case ECANCELED: return ST_CANCELLED;
    default: return ST_IO;
  }
}
