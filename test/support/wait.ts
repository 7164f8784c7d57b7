/** Resolves when `probe` answers something, asked again and again: for what tells nobody when it happens. */
export async function eventually<T>(
  probe: () => Promise<T | undefined> | T | undefined,
  ms = 10_000,
): Promise<T> {
  const until = performance.now() + ms;
  for (;;) {
    const found = await probe();
    if (found !== undefined) return found;
    if (performance.now() > until) throw new Error(`not within ${ms} ms: ${probe}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Number of different values. */
export function distinct(values: readonly unknown[]): number {
  return new Set(values).size;
}
