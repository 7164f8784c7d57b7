/** Sandboxes through the SDK, for tests over microVMs. */
import type { ExecResponse } from '@forkd/api';
import { type ExecOptions, Forkd, ForkdError, type ForkOptions, type Sandbox } from '@forkd/sdk';
import pLimit from 'p-limit';

/** Sandboxes that are removed when they go out of scope. */
export interface Children extends AsyncDisposable {
  readonly boxes: readonly Sandbox[];
  /** The first. */
  readonly box: Sandbox;
}

/** A client of the shared daemon, or of that of another home. */
export function client(home = process.env.FORKD_HOME ?? ''): Forkd {
  return new Forkd({ home });
}

/**
 * Forks, by default one child of the busybox template. All of them must start.
 *
 * @example await using children = await fork(3);
 */
export async function fork(
  n = 1,
  options: Partial<ForkOptions> = {},
  from: Forkd = client(),
): Promise<Children> {
  const { sandboxes, failures } = await from.fork({ snapshot: 'busybox', n, ...options });
  const removeAll = async () => {
    await Promise.all(sandboxes.map((box) => box.kill().catch(unlessGone)));
  };
  const box = sandboxes[0];
  if (failures.length > 0 || box === undefined) {
    await removeAll();
    throw new Error(`${failures.length} of ${n} children failed: ${JSON.stringify(failures)}`);
  }
  return { boxes: sandboxes, box, [Symbol.asyncDispose]: removeAll };
}

/** A test may have removed it itself. */
function unlessGone(error: unknown): void {
  if (!(error instanceof ForkdError && error.code === 'sandbox_not_found')) throw error;
}

/** Runs shell text that must succeed. Answers its output without the newline at the end. */
export async function sh(box: Sandbox, text: string, options: ExecOptions = {}): Promise<string> {
  const result = await box.exec({ shell: text }, options);
  if (result.outcome.kind !== 'exited' || result.exit_code !== 0) throw new Error(describe(text, result));
  return result.stdout.replace(/\n$/, '');
}

function describe(text: string, { outcome, stdout, stderr }: ExecResponse): string {
  return `${text}: ${JSON.stringify(outcome)}\n${stdout}\n${stderr}`;
}

/** The error of a call that must fail. */
export async function failureOf(call: Promise<unknown>): Promise<ForkdError> {
  try {
    const value = await call;
    throw new Error(`should have failed, and answered ${JSON.stringify(value)?.slice(0, 500)}`);
  } catch (error) {
    if (error instanceof ForkdError) return error;
    throw error;
  }
}

/** Builds a template and answers the id of its snapshot. */
export async function build(yaml: string, tag: string, from: Forkd = client()): Promise<string> {
  for await (const event of from.templates.build({ yaml }, { tag })) {
    if (event.type === 'done') return event.snapshot_id;
    if (event.type === 'failed') throw new Error(`${event.error.code}: ${event.error.error}`);
  }
  throw new Error('a build without an end');
}

/** A snapshot that is removed when it goes out of scope; what continues from it must be gone by then. */
export async function template(
  yaml: string,
  tag: string,
  from: Forkd = client(),
): Promise<AsyncDisposable & { tag: string; id: string }> {
  const id = await build(yaml, tag, from);
  return { tag, id, [Symbol.asyncDispose]: () => from.snapshots.remove(tag) };
}

/** Guests that compute at a time where a test has many: each needs a core of the host, and all are to answer well within their time. */
const AT_ONCE = 8;

/** Does the same in each of many children, a few at a time. Answers in their order. */
export async function inEach<T>(
  boxes: readonly Sandbox[],
  act: (box: Sandbox, index: number) => Promise<T>,
): Promise<T[]> {
  const slots = pLimit(AT_ONCE);
  return await Promise.all(boxes.map((box, index) => slots(() => act(box, index))));
}
