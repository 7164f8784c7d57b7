/** Work of QEMU on the disk of a running guest: what several overlays hold comes into the one that is written to. */
import { deadline } from '../deadline.js';
import { EngineError } from '../errors.js';
import type { Qmp, QmpEvent } from './qmp.js';

/** Name of that work in QEMU. */
const GATHER = 'gather';

/** It may take so long, ms. */
const GATHER_MS = 120_000;

/** How long QEMU may take to give it up, ms. */
const CANCEL_MS = 10_000;

/** Copies into an overlay what those between it and `base` hold, which it then stands on. The file names nothing below it, as before. */
export async function stream(qmp: Qmp, node: string, base: string): Promise<void> {
  using limit = deadline('gathering the disk of a sandbox', GATHER_MS);
  using ended = endOf(qmp, GATHER, limit.signal);
  try {
    await qmp.run('block-stream', {
      'job-id': GATHER,
      device: node,
      'base-node': base,
      'backing-file': '',
    });
    const { event, data } = await ended.event;
    if (event !== 'BLOCK_JOB_COMPLETED' || data?.error !== undefined)
      throw new EngineError('vmm_failed', `QEMU could not gather a disk: ${data?.error ?? event}`);
  } catch (error) {
    await endJobs(qmp);
    throw error;
  }
}

/** A daemon that died may have left one at work, and a disk that is worked on cannot be frozen. */
export async function endJobs(qmp: Qmp): Promise<void> {
  const jobs = await qmp.run<{ device: string }[]>('query-block-jobs');
  for (const { device } of jobs) {
    using limit = deadline('the end of work on a disk', CANCEL_MS);
    using ended = endOf(qmp, device, limit.signal);
    try {
      await qmp.run('block-job-cancel', { device, force: true });
      await ended.event;
    } catch (error) {
      // It has just come to its end.
      if (!(error instanceof EngineError) || error.details?.class !== 'DeviceNotActive') throw error;
    }
  }
}

/** The end of a job, listened for from now on until it is disposed of. */
function endOf(qmp: Qmp, job: string, signal: AbortSignal): { event: Promise<QmpEvent> } & Disposable {
  const stop = new AbortController();
  const event = qmp.event(
    ({ event, data }) => /^BLOCK_JOB_(COMPLETED|CANCELLED)$/.test(event) && data?.device === job,
    AbortSignal.any([signal, stop.signal]),
  );
  event.catch(() => {}); // Where nothing has begun nobody waits for it.
  return { event, [Symbol.dispose]: () => stop.abort() };
}
