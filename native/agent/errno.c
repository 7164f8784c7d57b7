/* errno values in the protocol's words. */
#include "agent.h"
#include <errno.h>

int status_of_errno(int err) {
  switch (err) {
  case 0: return ST_OK;
  case ENOENT: return ST_NOT_FOUND;
  case EACCES:
  case EPERM: return ST_PERMISSION;
  case ENOEXEC: return ST_NOT_EXECUTABLE;
  case ENOTDIR: return ST_NOT_A_DIRECTORY;
  case EISDIR: return ST_IS_A_DIRECTORY;
  case EEXIST: return ST_EXISTS;
  case ENOTEMPTY: return ST_NOT_EMPTY;
  case ENOSPC:
  case EDQUOT: return ST_NO_SPACE;
  case EROFS: return ST_READ_ONLY;
  case EFBIG:
  case EOVERFLOW: return ST_TOO_LARGE;
  case E2BIG:
  case EMSGSIZE:
  case ENAMETOOLONG: return ST_TOO_LONG;
  case EBUSY:
  case EAGAIN:
  case ETXTBSY:
  case EMFILE:
  case ENFILE: return ST_BUSY;
  case EINVAL: return ST_INVALID;
  case ENOSYS:
  case EOPNOTSUPP:
  case ENOTTY:
  case ENXIO:
  case ENODEV:
  case EXDEV: /* a rename to another file system: to be copied instead */
  case EMLINK: return ST_UNSUPPORTED;
  case ESRCH:
  case ECHILD: return ST_NO_SUCH_PROCESS;
  case ECONNREFUSED: return ST_REFUSED;
  case ELOOP: return ST_LOOP;
  case ETIMEDOUT: return ST_TIMEOUT;
  case ENOMEM: return ST_NO_MEMORY;
  case EPIPE:
  case ECONNRESET:
  case ECONNABORTED:
  case ENOTCONN: return ST_CLOSED;
  case ECANCELED: return ST_CANCELLED;
  default: return ST_IO;
  }
}
