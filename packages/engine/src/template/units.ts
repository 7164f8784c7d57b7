/** Sizes and durations as people write them. */

const factors = { B: 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 } as const;

/** `512M`, `512 MiB`, `1.5G`: always powers of 1024, as memory is. Returns bytes; NaN when it is none. */
export function parseSize(text: string): number {
  const match = /^([0-9]+(?:\.[0-9]+)?) ?([BKMGT])(?:i?B)?$/.exec(text);
  if (!match) return Number.NaN;
  return Number(match[1]) * factors[match[2] as keyof typeof factors];
}

const durations = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 } as const;

/** `90` (seconds), `90s`, `500ms`, `5m`, `1h`. Returns milliseconds, at least 1, at most a day; NaN when it is none. */
export function parseDuration(value: number | string): number {
  const match = /^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)$/.exec(typeof value === 'number' ? `${value}s` : value);
  if (!match) return Number.NaN;
  const ms = Number(match[1]) * durations[match[2] as keyof typeof durations];
  return Math.min(Math.max(Math.round(ms), 1), 86_400_000);
}
