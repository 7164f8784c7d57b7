/** One line of the result. */
export interface Row {
  name: string;
  unit: 'ms' | 'MiB' | 'ratio';
  /** Measured values, warm-up dropped. */
  n: number;
  ok: number;
  failed: number;
  p50: number | null;
  p90: number | null;
  p99: number | null;
  /** What a reader has to know of this row. */
  note?: string;
}

/** Values of a row, and the failures among its tries. */
export interface Series {
  values: number[];
  failures: string[];
}

/**
 * The value below which a share of the values lies, by the nearest rank.
 *
 * @param share from 0 to 1
 * @returns null for no values
 */
export function percentile(values: readonly number[], share: number): number | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)]!;
}

/** Makes the row of a series. */
export function rowOf(name: string, unit: Row['unit'], series: Series, note?: string): Row {
  const { values, failures } = series;
  const text = [note, failures[0] && `first failure: ${failures[0]}`].filter(Boolean).join('; ');
  return {
    name,
    unit,
    n: values.length + failures.length,
    ok: values.length,
    failed: failures.length,
    p50: percentile(values, 0.5),
    p90: percentile(values, 0.9),
    p99: percentile(values, 0.99),
    ...(text !== '' && { note: text }),
  };
}

/** A row that is made of one number. */
export function singleRow(name: string, unit: Row['unit'], value: number | null, note?: string): Row {
  return rowOf(name, unit, { values: value === null ? [] : [value], failures: [] }, note);
}

/** Least values that a median is told of, where time runs out. */
const LEAST = 3;

/**
 * Runs something `n` times after `warmUp` times that do not count; fewer times where that takes longer than `budgetMs`.
 *
 * @param once one try; resolves to its value
 * @param budgetMs after so long no more tries begin, once there are three
 */
export async function repeat(
  n: number,
  warmUp: number,
  once: (index: number) => Promise<number>,
  budgetMs = Number.POSITIVE_INFINITY,
): Promise<Series> {
  const series: Series = { values: [], failures: [] };
  const end = performance.now() + budgetMs;
  for (let index = -warmUp; index < n; index++) {
    if (performance.now() > end && index >= LEAST) break;
    try {
      const value = await once(index);
      if (index >= 0) series.values.push(value);
    } catch (error) {
      if (index >= 0) series.failures.push(error instanceof Error ? error.message : String(error));
    }
  }
  return series;
}

/** The row that `measure` makes; one that says so where it fails, or takes longer than `limitMs`. */
export async function rowWithin(
  name: string,
  unit: Row['unit'],
  limitMs: number,
  measure: () => Promise<Row>,
): Promise<Row> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not measured within ${limitMs / 1000} s`)), limitMs);
  });
  try {
    return await Promise.race([measure(), late]);
  } catch (error) {
    return rowOf(name, unit, {
      values: [],
      failures: [error instanceof Error ? error.message : String(error)],
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Milliseconds that something took. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}
