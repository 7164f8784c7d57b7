import { readFileSync } from 'node:fs';

let bootId: string | undefined;

/** Id of this boot of the host: what was learnt about the host holds as long as it. */
export function hostBootId(): string {
  bootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  return bootId;
}
