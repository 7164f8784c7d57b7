import { metricsOrder } from '@forkd/wire';
import { readableOf } from './channels.js';
import type { Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { broken, FieldReader, FieldWriter } from './fields.js';
import type { GuestMetrics } from './types.js';

const METRICS_DEADLINE_MS = 30_000;
const MAX_BYTES = 4096;

/** What the guest's kernel says of itself now. */
export async function readMetrics(c: Conversation): Promise<GuestMetrics> {
  const request = c.begin('METRICS', new FieldWriter(), { outputs: [{ channel: 1, holdEnd: true }] });
  const stream = readableOf(request.output(1), () =>
    c.reset(request, new AgentError('aborted', 'metrics were given up')),
  );
  async function collect(): Promise<GuestMetrics> {
    const parts: Buffer[] = [];
    let size = 0;
    for await (const part of stream as AsyncIterable<Buffer>) {
      parts.push(part);
      size += part.length;
      if (size > MAX_BYTES) throw broken(`metrics of more than ${MAX_BYTES} bytes`);
    }
    return decode(new FieldReader(Buffer.concat(parts)).bytes('metrics'));
  }
  return await c.wait(request, collect(), { deadlineMs: METRICS_DEADLINE_MS });
}

function decode(bytes: Buffer): GuestMetrics {
  const at = (name: (typeof metricsOrder)[number]): bigint =>
    bytes.readBigUInt64LE(8 * metricsOrder.indexOf(name));
  const load = (name: 'load1' | 'load5' | 'load15'): number => Number(at(name)) / 1000;
  return {
    uptimeNs: at('uptimeNs'),
    wallClockNs: at('wallClockNs'),
    cpus: Number(at('cpus')),
    cpu: {
      userUs: at('userUs'),
      systemUs: at('systemUs'),
      idleUs: at('idleUs'),
      iowaitUs: at('iowaitUs'),
      stealUs: at('stealUs'),
    },
    load: [load('load1'), load('load5'), load('load15')],
    memory: {
      total: at('memTotal'),
      free: at('memFree'),
      available: at('memAvailable'),
      cached: at('memCached'),
      userLimit: at('userLimit'),
      userUsed: at('userUsed'),
    },
    disk: { total: at('diskTotal'), free: at('diskFree'), available: at('diskAvailable') },
    processes: Number(at('processes')),
    oomKills: at('oomKills'),
  };
}
