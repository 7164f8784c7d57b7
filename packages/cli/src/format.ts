/** Numbers and times as people read them. */

/** @example bytes(16_800_000) // '16 MiB' */
export function bytes(count: number | undefined): string {
  if (count === undefined) return '-';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = count;
  let unit = 0;
  // What would be shown as 1024 of one unit is 1.0 of the next.
  while (value >= (unit === 0 ? 1024 : 1023.5) && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 9.95 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** @example duration(4312) // '4.3 s' */
export function duration(ms: number | undefined): string {
  if (ms === undefined) return '-';
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * How long ago something was.
 *
 * @param unix seconds since the epoch
 * @example age(now - 90) // '1 min ago'
 */
export function age(unix: number | undefined, now: number = Date.now() / 1000): string {
  if (unix === undefined) return '-';
  const seconds = Math.max(0, Math.round(now - unix));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/**
 * Text of a guest or of a user without what would move the cursor or colour the terminal.
 * Tabs and line ends become spaces: for one line of a table.
 */
export function oneLine(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it is about
  return text.replace(/\s+/g, ' ').replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd');
}
