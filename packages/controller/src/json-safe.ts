/** Values of the engine as JSON. */

/** The same value with bigints as numbers (strings where a number would not be exact) and names in snake case. */
export function jsonSafe(value: unknown): unknown {
  if (typeof value === 'bigint') {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : value.toString();
  }
  if (Array.isArray(value)) return value.map(jsonSafe);
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).map(([key, inner]) => [snake(key), jsonSafe(inner)]);
    return Object.fromEntries(entries) as unknown;
  }
  return value;
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
