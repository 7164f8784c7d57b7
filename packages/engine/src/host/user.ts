import { statSync } from 'node:fs';
import type { VmmUser } from '../machine/run-directory.js';
import type { ShimAbilities } from '../shim/index.js';
import type { Accelerator } from '../types.js';

/** User that VMMs run as where the daemon is root: in no range that distributions give out. */
const VMM_ID = 64_900;

/** Who VMMs run as: a user of their own when we are root, else us. Under kvm their group is that of /dev/kvm. */
export function vmmUser(abilities: ShimAbilities, accelerator: Accelerator): VmmUser | undefined {
  if (process.getuid?.() !== 0 || !abilities.changeUser) return undefined;
  return { uid: VMM_ID, gid: accelerator === 'kvm' ? statSync('/dev/kvm').gid : VMM_ID };
}
