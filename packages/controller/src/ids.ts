/** Ids of sandboxes and snapshots. */
import { randomBytes } from 'node:crypto';

const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';

/** A new sandbox id: 80 random bits. */
export function newSandboxId(): string {
  return `sb-${random()}`;
}

/** A new snapshot id: 80 random bits. */
export function newSnapshotId(): string {
  return `sn-${random()}`;
}

function random(): string {
  let text = '';
  for (const byte of randomBytes(16)) text += alphabet[byte & 31];
  return text;
}
