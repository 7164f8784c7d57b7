/** Changes below a path, as they happen. */
import { watchEvents } from '@forkd/wire';
import { readableOf } from './channels.js';
import type { Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { broken, type FieldReader, FieldWriter } from './fields.js';
import { readRecords } from './records.js';
import { refuseAborted } from './settle.js';
import type { GuestPath, Watch, WatchEvent } from './types.js';

const CALL_DEADLINE_MS = 60_000;

export async function watch(
  c: Conversation,
  path: GuestPath,
  o: { recursive?: boolean; signal?: AbortSignal },
): Promise<Watch> {
  refuseAborted('watch', o.signal);
  const fields = new FieldWriter().text('path', path).flag('recursive', o.recursive);
  const request = c.begin('WATCH', fields, { outputs: [{ channel: 1 }] });
  await c.wait(request, request.answered, { signal: o.signal, deadlineMs: CALL_DEADLINE_MS });
  const stream = readableOf(request.output(1));
  let closed = false;
  const close = (): void => {
    closed = true;
    o.signal?.removeEventListener('abort', close);
    c.reset(request, new AgentError('aborted', 'the watch was closed'));
    stream.destroy();
  };
  o.signal?.addEventListener('abort', close, { once: true });

  // One reader for all iterators: a second loop goes on where the first one stopped.
  const records = readRecords(stream);
  async function next(): Promise<IteratorResult<WatchEvent>> {
    try {
      const record = await records.next();
      if (!record.done) return { done: false, value: readEvent(record.value) };
    } catch (error) {
      if (!closed) throw error;
    }
    return { done: true, value: undefined };
  }
  return {
    close,
    [Symbol.asyncDispose]: async () => close(),
    [Symbol.asyncIterator]: () => ({ next }),
  };
}

function readEvent(fields: FieldReader): WatchEvent {
  const event = fields.u32('event');
  const directory = fields.u32('directory', 0) === 1;
  switch (event) {
    case watchEvents.created:
      return { kind: 'created', path: fields.text('path'), directory };
    case watchEvents.modified:
      return { kind: 'modified', path: fields.text('path'), directory };
    case watchEvents.removed:
      return { kind: 'removed', path: fields.text('path'), directory };
    case watchEvents.attributes:
      return { kind: 'attributes', path: fields.text('path'), directory };
    case watchEvents.moved_from:
      return { kind: 'moved_from', path: fields.text('path'), directory, cookie: fields.u32('cookie') };
    case watchEvents.moved_to:
      return { kind: 'moved_to', path: fields.text('path'), directory, cookie: fields.u32('cookie') };
    case watchEvents.overflow:
      return { kind: 'overflow' };
    case watchEvents.gone:
      return { kind: 'gone', path: fields.text('path', '') };
    default:
      throw broken(`watch event ${event}`);
  }
}
