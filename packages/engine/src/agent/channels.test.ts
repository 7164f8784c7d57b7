import { INITIAL_WINDOW } from '@forkd/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InChannel, OutChannel, readableOf, writableOf } from './channels.js';

const nobody = (): void => {};

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  let all = '';
  for await (const chunk of stream) all += chunk.toString('latin1');
  return all;
}

describe('input channel', () => {
  it('hands on each byte once, however often parts of it come again', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.string({ minLength: 1, maxLength: 60 }),
        fc.array(fc.tuple(fc.nat(60), fc.nat(60))),
        async (sent, parts) => {
          const bytes = Buffer.from(sent, 'latin1');
          const channel = new InChannel(1, nobody);
          const stream = readableOf(channel);
          let have = 0;
          for (const [from, length] of [...parts, [0, bytes.length] as const]) {
            const start = Math.min(from, have);
            const end = Math.min(bytes.length, start + length);
            if (end > start) channel.receive(start, bytes.subarray(start, end));
            have = Math.max(have, end);
          }
          channel.end(bytes.length);
          expect(await text(stream)).toBe(bytes.toString('latin1'));
        },
      ),
    );
  });

  it('refuses a jump, bytes over its limit, and an end that is elsewhere', () => {
    const make = () => new InChannel(1, nobody);
    expect(() => make().receive(1, Buffer.from('x'))).toThrow('jumps from 0 to 1');
    expect(() => make().receive(0, Buffer.alloc(INITIAL_WINDOW + 1))).toThrow('over its limit');
    expect(() => make().end(1)).toThrow('ends at 1');
    expect(() => make().gap(5, 6)).toThrow('jumps');
  });

  it('opens its window as the consumer reads, not before', async () => {
    const channel = new InChannel(1, nobody);
    const stream = readableOf(channel);
    channel.receive(0, Buffer.alloc(100_000));
    channel.receive(100_000, Buffer.alloc(100_000));
    expect(channel.acknowledgement(false)).toEqual({ received: 200_000, limit: INITIAL_WINDOW });
    expect(channel.acknowledgement(false)).toBeNull();
    expect(stream.read()).toHaveLength(100_000);
    expect(channel.acknowledgement(false)).toEqual({ received: 200_000, limit: INITIAL_WINDOW + 100_000 });
    stream.destroy();
    expect(channel.acknowledgement(true)).toEqual({ received: 200_000, limit: INITIAL_WINDOW + 200_000 });
  });

  it('tells a gap in its place', async () => {
    const channel = new InChannel(1, nobody);
    const stream = readableOf(channel);
    const seen: string[] = [];
    stream.on('gap', ({ from, to }) => seen.push(`gap ${from} ${to}`));
    channel.receive(0, Buffer.from('ab'));
    channel.gap(2, 10);
    channel.receive(10, Buffer.from('cd'));
    channel.end(12);
    for await (const chunk of stream) seen.push(String(chunk));
    expect(seen).toEqual(['ab', 'gap 2 10', 'cd']);
  });

  it('takes the start of an attach from now as its own, without a gap', async () => {
    const channel = new InChannel(1, nobody, { anyStart: true });
    const stream = readableOf(channel);
    stream.on('gap', () => expect.unreachable());
    channel.gap(0, 1_000_000);
    expect(channel.acknowledgement(false)).toEqual({
      received: 1_000_000,
      limit: 1_000_000 + INITIAL_WINDOW,
    });
    channel.receive(1_000_000, Buffer.from('x'));
    channel.end(1_000_001);
    expect(await text(stream)).toBe('x');
  });

  it('holds its end back until the request has ended well', async () => {
    const good = new InChannel(1, nobody, { holdEnd: true });
    const whole = text(readableOf(good));
    good.receive(0, Buffer.from('x'));
    good.end(1);
    good.close(null);
    expect(await whole).toBe('x');

    const bad = new InChannel(1, nobody, { holdEnd: true });
    const half = text(readableOf(bad));
    bad.receive(0, Buffer.from('x'));
    bad.close(null);
    await expect(half).rejects.toThrow('no end of channel 1');
  });
});

describe('output channel', () => {
  function drain(channel: OutChannel): Buffer[] {
    const frames: Buffer[] = [];
    for (;;) {
      const next = channel.next();
      if (next === null) return frames;
      if (next !== 'end') frames.push(Buffer.from(next.subarray(24)));
    }
  }

  it('stops at the limit and goes on when it moves', async () => {
    const channel = new OutChannel(1, nobody);
    const stream = writableOf(channel, false);
    stream.end(Buffer.alloc(INITIAL_WINDOW + 5));
    expect(drain(channel)).toEqual([]);
    channel.open();
    expect(Buffer.concat(drain(channel))).toHaveLength(INITIAL_WINDOW);
    channel.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW + 5);
    expect(Buffer.concat(drain(channel))).toHaveLength(5);
    await new Promise((resolve) => stream.once('finish', resolve));
  });

  it('sends again exactly what has not arrived, also after its end', () => {
    fc.assert(
      fc.property(fc.string({ minLength: 1 }), fc.nat(), fc.nat(), (sent, first, second) => {
        const bytes = Buffer.from(sent, 'latin1');
        const channel = new OutChannel(1, nobody);
        channel.open();
        channel.write(bytes, nobody);
        channel.end(nobody);
        drain(channel);
        const told = first % (bytes.length + 1);
        channel.acknowledge(told, INITIAL_WINDOW);
        const received = told + (second % (bytes.length - told + 1));
        const again = channel.replay(received);
        expect(Buffer.concat(again.frames.map((f) => f.subarray(24)))).toEqual(bytes.subarray(received));
        expect(again.ended).toBe(true);
      }),
    );
  });

  it('fails its writer when nobody listens any more', async () => {
    const channel = new OutChannel(1, nobody);
    const stream = writableOf(channel, true);
    stream.write('x');
    const failed = new Promise((resolve) => stream.once('error', resolve));
    channel.close(new (await import('./errors.js')).AgentError('closed', 'the process has ended'));
    expect(String(await failed)).toContain('the process has ended');
  });
});
