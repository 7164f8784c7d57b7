/** What every machine of a build needs: a name, and steps that end with it. */
import { randomBytes } from 'node:crypto';
import { orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import { endedError } from '../vmm/ended.js';
import type { BuilderMachine } from './builder.js';
import type { TemplateSpec } from './schema.js';
import type { BuildSteps, StepContext } from './steps.js';

/** Steps in one machine. */
export interface MachineSteps {
  /** Aborts when the machine has ended, with what it said, or when the build is cancelled. */
  readonly signal: AbortSignal;
  /** As `BuildSteps.run`; no wait of its body outlives the machine. */
  step<T>(name: string, title: string, body: (context: StepContext) => Promise<T>): Promise<T>;
}

/** @param signal of the build */
export function stepsIn(
  steps: BuildSteps,
  machine: BuilderMachine,
  signal: AbortSignal | undefined,
): MachineSteps {
  const over = new AbortController();
  machine.exited.then(async (exit) => {
    const failure = endedError(exit);
    const tail = (await machine.consoleTail().catch(() => '')).trim();
    const panic = /Kernel panic[^\n]*/.exec(tail)?.[0];
    const last = panic ?? tail.slice(-800);
    const { code, remedy, details, cause } = failure;
    const message = `${failure.message}${last === '' ? '' : `; its console ended with: ${last}`}`;
    over.abort(
      new EngineError(code, message, {
        ...(remedy !== undefined && { remedy }),
        ...(details && { details }),
        cause,
      }),
    );
  });
  const both = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
  return {
    signal: both,
    step: (name, title, body) => steps.run(name, title, (context) => orAborted(body(context), both)),
  };
}

/** Tells the machine what it is to be while it is built; each fork tells its child anew. */
export async function greet(machine: BuilderMachine, spec: TemplateSpec, signal: AbortSignal): Promise<void> {
  await machine.session.hello(
    {
      generation: randomBytes(16).toString('hex'),
      entropy: randomBytes(64),
      wallClockNs: BigInt(Date.now()) * 1_000_000n,
      hostname: 'template',
      machineId: randomBytes(16).toString('hex'),
      env: spec.env,
      metadata: '{}',
      thaw: { interpreters: true, user: true },
    },
    signal,
  );
}
