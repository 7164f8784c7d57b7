import Table from 'cli-table3';
import type { Row } from './statistics.js';

export interface Conditions {
  date: string;
  cores: number;
  memory_mib: number;
  accelerator: string;
  accelerator_reason: string;
  engine: string;
  engine_version: string;
  node: string;
  host_kernel: string;
  template: string;
  template_memory_mib: number;
  load_average_at_start: number;
  /** A run that starts on a busy host says so. */
  warning?: string;
}

export interface Result {
  conditions: Conditions;
  rows: Row[];
}

/** Load average above which a run is not to be trusted. */
export const BUSY_LOAD = 1.5;

/** Prints the table, and below it the conditions. */
export function printResult(result: Result): void {
  const table = new Table({
    head: ['row', 'unit', 'n', 'ok', 'p50', 'p90', 'p99', 'note'],
    style: { head: [] },
  });
  for (const row of result.rows)
    table.push([
      row.name,
      row.unit,
      row.n,
      row.ok,
      show(row.p50),
      show(row.p90),
      show(row.p99),
      (row.note ?? '').slice(0, 70),
    ]);
  console.log(table.toString());
  for (const [name, value] of Object.entries(result.conditions)) console.log(`${name}: ${value}`);
}

function show(value: number | null): string {
  if (value === null) return '-';
  return value >= 100 ? value.toFixed(0) : value.toFixed(2);
}
