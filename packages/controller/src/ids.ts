/** Ids of sandboxes. */
import { randomBytes } from 'node:crypto';

const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';

/** A new sandbox id: 80 random bits. */
export function newSandboxId(): string {
  let id = 'sb-';
  for (const byte of randomBytes(16)) id += alphabet[byte & 31];
  return id;
}
