import { describe, expect, it } from 'vitest';
import type { ExploreClient } from './explore-types.js';
import { Exploration, InvalidError, type Sandbox } from './index.js';

const from = 'sb-0000000000000000';

/** A client that notes what was asked of it; forking fails with `error`, or never ends where there is none. */
function clientOf(error?: Error) {
  const asked: string[] = [];
  const sandbox = (id: string) => ({
    branch: async () => {
      asked.push(`branch ${id}`);
      return { id: 'sn-1' };
    },
  });
  const client = {
    sandbox: (id: string) => sandbox(id) as unknown as Sandbox,
    fork: ({ snapshot, signal }: { snapshot: string; signal?: AbortSignal }) => {
      asked.push(`fork ${snapshot}`);
      return new Promise((_, reject) => {
        if (error) reject(error);
        signal?.addEventListener('abort', () => reject(signal.reason));
      });
    },
    snapshots: { remove: async (id: string) => void asked.push(`remove ${id}`) },
  };
  return { client: client as unknown as ExploreClient, asked };
}

async function ended(exploration: Exploration): Promise<unknown> {
  try {
    for await (const result of exploration) throw new Error(`a result: ${JSON.stringify(result)}`);
    return 'without an error';
  } catch (error) {
    return error;
  }
}

describe('an exploration of a sandbox', () => {
  it('whose children cannot be started leaves no branch behind', async () => {
    const error = new Error('no memory');
    const { client, asked } = clientOf(error);
    expect(await ended(new Exploration(client, { from, n: 2, command: ['true'] }))).toBe(error);
    expect(asked).toEqual([`branch ${from}`, 'fork sn-1', 'remove sn-1']);
  });

  it('that is aborted while it is branched or forked leaves none either', async () => {
    for (const stage of ['branch', 'fork']) {
      const { client, asked } = clientOf();
      const stop = new AbortController();
      const exploration = new Exploration(client, { from, n: 2, command: ['true'], signal: stop.signal });
      const end = ended(exploration);
      while (asked.at(-1)?.split(' ')[0] !== stage) await new Promise(setImmediate);
      const reason = new Error('enough');
      stop.abort(reason);
      expect(await end).toBe(reason);
      expect(asked.at(-1)).toBe('remove sn-1');
    }
  });
});

it('an exploration without children, or of another number than has entries, is refused with both', () => {
  const { client } = clientOf();
  const make = (options: object) => () =>
    new Exploration(client, { from: 'busybox', command: ['true'], ...options });
  expect(make({})).toThrow(InvalidError);
  expect(make({ n: 2, each: [{}] })).toThrow('n is 2, and each has 1 entry');
  expect(make({ n: 1001 })).toThrow('1 to 1000');
});
