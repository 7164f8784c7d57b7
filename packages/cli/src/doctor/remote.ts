/** Checks that the daemon does: the host as the engine finds it. */
import type { Context } from '../context.js';
import { reportOf } from '../failure.js';

export interface Check {
  name: string;
  state: 'pass' | 'warn' | 'fail';
  found: string;
  /** What mends it. */
  remedy?: string;
}

/** The daemon itself, then what it says of the host. A daemon that cannot start is a check that failed. */
export async function checkDaemon(context: Context, prove: boolean): Promise<Check[]> {
  try {
    const client = await context.client();
    const { version, pid, tcp, tcp_problem } = await client.daemon(context.signal);
    const checks: Check[] = [
      { name: 'daemon', state: 'pass', found: `version ${version}, pid ${pid}${tcp ? `, TCP ${tcp}` : ''}` },
    ];
    if (tcp_problem) {
      const remedy =
        'only needed by clients that use TCP: end who has the port, or "forkd serve --bind HOST:PORT"';
      checks.push({ name: 'TCP address', state: 'warn', found: tcp_problem, remedy });
    }
    const facts = await client.host({ prove, signal: context.signal });
    return [...checks, ...hostChecks(facts)];
  } catch (error) {
    if (context.signal.aborted) throw error;
    const { message, hint } = reportOf(error);
    return [{ name: 'daemon', state: 'fail', found: message, ...(hint && { remedy: hint }) }];
  }
}

/** The checks among the facts of a host; facts of other versions are passed over. */
export function hostChecks(facts: Readonly<Record<string, unknown>>): Check[] {
  const { checks } = facts;
  return Array.isArray(checks) ? checks.filter(isCheck) : [];
}

function isCheck(value: unknown): value is Check {
  const { name, state, found } = (value ?? {}) as Partial<Check>;
  return (
    typeof name === 'string' && typeof found === 'string' && ['pass', 'warn', 'fail'].includes(state ?? '')
  );
}
