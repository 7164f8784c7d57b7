import { randomBytes } from 'node:crypto';

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';

/**
 * A new id: prefix and 16 characters of Crockford's base32, 80 random bits. Unique across hosts for all practical purposes.
 *
 * @example newId('sb') // 'sb-7h2k9m4p1q8r3s5t'
 */
export function newId(prefix: 'sb' | 'sn'): string {
  const bytes = randomBytes(16);
  let text = '';
  for (const byte of bytes) text += ALPHABET[byte & 31];
  return `${prefix}-${text}`;
}

/** Whether `text` is an id of that kind; anything else must never become part of a path. */
export function isId(prefix: 'sb' | 'sn', text: string): boolean {
  return new RegExp(`^${prefix}-[0-9a-hjkmnp-tv-z]{16}$`).test(text);
}
