import { statSync } from 'node:fs';
import type { VmmUser } from '../machine/run-directory.js';
import type { ShimAbilities } from '../shim/index.js';
import type { Accelerator } from '../types.js';

/** User that VMMs run as where the daemon is root: in no range that distributions give out. */
const VMM_ID = 64_900;

/**
 * Who VMMs run as: a user of their own when we are root, else us. Under kvm their group is that of /dev/kvm, where that opens it and is
 * a group for it; else the shim gives each a /dev/kvm of its own: whether kvm works is one question, who may open it another.
 */
export function vmmUser(abilities: ShimAbilities, accelerator: Accelerator): VmmUser | undefined {
  if (process.getuid?.() !== 0 || !abilities.changeUser) return undefined;
  const user = { uid: VMM_ID, gid: VMM_ID };
  if (accelerator !== 'kvm') return user;
  const { gid, mode } = statSync('/dev/kvm');
  if ((mode & 0o006) === 0o006) return user;
  const root = 0;
  return (mode & 0o060) === 0o060 && gid !== root ? { uid: VMM_ID, gid } : { ...user, ownKvm: true };
}
