/** What the client does when the guest is old, silent, forgetful or broken: against a guest made of a few lines. */
import { Duplex } from 'node:stream';
import { frameTypes, requestStates, SYNC_REPLY_MAGIC_HEX, verbs } from '@forkd/wire';
import { describe, expect, it } from 'vitest';
import { FieldReader, FieldWriter } from './fields.js';
import { encodeFrame } from './frames.js';
import { openAgentSession } from './session.js';
import type { OpenSessionOptions } from './types.js';

interface Received {
  type: number;
  id: number;
  payload: Buffer;
}

/** One connection as the guest sees it. */
class GuestEnd {
  readonly client: Duplex;
  readonly frames: Received[] = [];
  readonly #guest: FakeGuest;
  #bytes = Buffer.alloc(0);
  #synced = false;

  constructor(guest: FakeGuest) {
    this.#guest = guest;
    this.client = new Duplex({
      read() {},
      write: (chunk: Buffer, _, done) => {
        this.#bytes = Buffer.concat([this.#bytes, chunk]);
        setImmediate(() => this.#parse());
        done();
      },
    });
  }

  send(bytes: Buffer): void {
    if (!this.client.destroyed) this.client.push(bytes);
  }

  cut(): void {
    this.client.destroy();
  }

  #parse(): void {
    for (;;) {
      if (!this.#synced) {
        if (this.#bytes.length < 64) return;
        const reply = Buffer.alloc(64);
        Buffer.from(SYNC_REPLY_MAGIC_HEX, 'hex').copy(reply);
        reply.writeUInt16LE(this.#guest.version, 16);
        reply.writeUInt16LE(this.#guest.resumes && this.#guest.ends.length > 1 ? 1 : 0, 18);
        this.#bytes.copy(reply, 24, 24, 56);
        this.#bytes = this.#bytes.subarray(64);
        if (this.#guest.deaf) continue;
        this.#synced = true;
        this.send(Buffer.concat([reply, this.#guest.resumed()]));
      }
      if (this.#bytes.length < 16) return;
      const length = this.#bytes.readUInt32LE(8);
      if (this.#bytes.length < 16 + length) return;
      const frame = {
        type: this.#bytes[2]!,
        id: this.#bytes.readUInt32LE(4),
        payload: Buffer.from(this.#bytes.subarray(16, 16 + length)),
      };
      this.#bytes = this.#bytes.subarray(16 + length);
      this.frames.push(frame);
      this.#guest.onFrame(frame, this);
    }
  }
}

class FakeGuest {
  version = 1;
  resumes = true;
  deaf = false;
  highest = 0;
  live: { id: number; state: number; received: number }[] = [];
  readonly ends: GuestEnd[] = [];
  onFrame: (frame: Received, end: GuestEnd) => void = () => {};

  dial = async (): Promise<Duplex> => {
    const end = new GuestEnd(this);
    this.ends.push(end);
    return end.client;
  };

  resumed(): Buffer {
    const payload = Buffer.alloc(8 + 16 * this.live.length);
    payload.writeUInt32LE(this.highest, 0);
    payload.writeUInt32LE(this.live.length, 4);
    this.live.forEach(({ id, state, received }, i) => {
      payload.writeUInt32LE(id, 8 + 16 * i);
      payload.writeUInt32LE(state, 12 + 16 * i);
      payload.writeUInt32LE(received, 16 + 16 * i);
    });
    return encodeFrame(frameTypes.RESUMED, 0, 0, payload);
  }
}

const res = (id: number, status = 0, fields = new FieldWriter()): Buffer => {
  const head = Buffer.alloc(8);
  head.writeUInt16LE(status);
  return encodeFrame(frameTypes.RES, 0, id, Buffer.concat([head, fields.finish()]));
};

const verbOf = (frame: Received): number => frame.payload.readUInt16LE(0);

function open(guest: FakeGuest, o: Partial<OpenSessionOptions> = {}) {
  return openAgentSession({ dial: guest.dial, connectTimeoutMs: 2000, reconnectTimeoutMs: 300, ...o });
}

describe('a session', () => {
  it('refuses a guest of another version, and says what to do', async () => {
    const guest = new FakeGuest();
    guest.version = 2;
    await expect(open(guest)).rejects.toMatchObject({
      code: 'version',
      message: expect.stringMatching(/version 2.*speaks 1.*build the template again/),
    });
    expect(guest.ends).toHaveLength(1);
  });

  it('gives up on a guest that does not answer in time', async () => {
    const guest = new FakeGuest();
    guest.deaf = true;
    await expect(open(guest, { connectTimeoutMs: 50 })).rejects.toMatchObject({ code: 'unreachable' });
    await expect(
      openAgentSession({ dial: () => Promise.reject(new Error('no socket')), connectTimeoutMs: 50 }),
    ).rejects.toThrow('no socket');
    await expect(
      openAgentSession({ dial: () => new Promise(() => {}), connectTimeoutMs: 50 }),
    ).rejects.toMatchObject({ code: 'unreachable' });
  });

  it('ends, with all its calls, when the guest does not know it any more', async () => {
    const guest = new FakeGuest();
    const session = await open(guest);
    const call = session.setHostname('a');
    guest.resumes = false;
    guest.ends[0]?.cut();
    await expect(call).rejects.toMatchObject({ code: 'session_lost' });
    await session.closed;
    await expect(session.ps()).rejects.toMatchObject({ code: 'session_lost' });
  });

  it('ends when nobody can be dialled for the time allowed', async () => {
    const guest = new FakeGuest();
    const session = await open(guest, { reconnectTimeoutMs: 60 });
    guest.deaf = true;
    const call = session.setHostname('a');
    guest.ends[0]?.cut();
    await expect(call).rejects.toMatchObject({ code: 'unreachable' });
    await session.closed;
  });

  it('notices that the guest has gone silent, and dials again', async () => {
    const guest = new FakeGuest();
    const session = await open(guest, { keepalive: { idleMs: 20, answerMs: 20 } });
    guest.onFrame = ({ type, id }, end) => {
      if (type === frameTypes.REQ && guest.ends.length > 1) end.send(res(id));
    };
    await session.setHostname('a');
    expect(guest.ends[0]?.frames.map((f) => f.type)).toEqual([frameTypes.REQ, frameTypes.PING]);
    await session.close();
  });

  it('takes the silence of a paused machine for what it is, and watches again when it goes on', async () => {
    const guest = new FakeGuest();
    const session = await open(guest, { keepalive: { idleMs: 20, answerMs: 20 } });
    guest.onFrame = ({ type, id }, end) => {
      if (type === frameTypes.REQ && guest.ends.length > 1) end.send(res(id));
    };
    const call = session.setHostname('a');
    session.paused(true);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(guest.ends.length).toBe(1);
    expect(guest.ends[0]?.frames.map((f) => f.type)).toEqual([frameTypes.REQ]);
    session.paused(false);
    await call;
    expect(guest.ends[0]?.frames.map((f) => f.type)).toEqual([frameTypes.REQ, frameTypes.PING]);
    await session.close();
  });

  it('sends again what the guest never began, and only that', async () => {
    const guest = new FakeGuest();
    const session = await open(guest);
    const calls = [session.setHostname('one'), session.setHostname('two'), session.setHostname('three')];
    await expect.poll(() => guest.ends[0]?.frames.length).toBe(3);
    guest.highest = 2;
    guest.live = [
      { id: 1, state: requestStates.RUNNING, received: 0 },
      { id: 2, state: requestStates.RECEIVING, received: 0 },
    ];
    guest.onFrame = ({ type, id }, end) => {
      if (type === frameTypes.REQ) end.send(res(id));
      if (id === 3 && type === frameTypes.REQ) end.send(res(1));
    };
    guest.ends[0]?.cut();
    await Promise.all(calls);
    const again = guest.ends[1]?.frames.filter((f) => f.type === frameTypes.REQ);
    expect(again?.map((f) => f.id)).toEqual([2, 3]);
    await session.close();
  });

  it('does not start a command that was given up before the guest had it', async () => {
    const guest = new FakeGuest();
    const session = await open(guest);
    const abort = new AbortController();
    const starting = session.spawn({ command: ['reboot'] }, abort.signal);
    guest.ends[0]?.cut();
    abort.abort();
    await expect(starting).rejects.toMatchObject({ code: 'aborted' });
    await expect.poll(() => guest.ends[1]?.frames.length).toBeGreaterThan(0);
    const sent = guest.ends[1]!.frames.filter((f) => f.type === frameTypes.REQ);
    expect(sent.map(verbOf)).toEqual([verbs.STAT]);
    expect(new FieldReader(sent[0]!.payload.subarray(4)).text('path')).toBe('/');
    await session.close();
  });

  it('frees the requests that a session it takes over had left', async () => {
    const guest = new FakeGuest();
    guest.highest = 7;
    guest.live = [{ id: 5, state: requestStates.RUNNING, received: 0 }];
    guest.onFrame = ({ type, id }, end) => type === frameTypes.REQ && end.send(res(id));
    const session = await open(guest);
    await session.setHostname('a');
    expect(guest.ends[0]?.frames.slice(0, 2).map((f) => [f.type, f.id])).toEqual([
      [frameTypes.FIN, 5],
      [frameTypes.REQ, 8],
    ]);
    await session.close();
  });

  it('takes an answer that came twice once', async () => {
    const guest = new FakeGuest();
    guest.onFrame = ({ type, id }, end) =>
      type === frameTypes.REQ && end.send(Buffer.concat([res(id), res(id), res(id)]));
    const session = await open(guest);
    await session.setHostname('a');
    await session.setHostname('b');
    await session.close();
  });

  it('passes on what the guest refuses, with its words', async () => {
    const guest = new FakeGuest();
    guest.onFrame = ({ type, id }, end) => {
      const message = new FieldWriter().text('message', 'no such thing as "x"');
      if (type === frameTypes.REQ) end.send(res(id, 1, message));
    };
    const session = await open(guest);
    await expect(session.setHostname('x')).rejects.toMatchObject({
      code: 'not_found',
      message: 'no such thing as "x"',
    });
    await session.close();
  });

  it('begins anew after a breach of the protocol, but does not believe a guest for ever', async () => {
    const guest = new FakeGuest();
    const wrong = Buffer.alloc(8);
    wrong.writeUInt16LE(60_000);
    guest.onFrame = ({ type, id }, end) =>
      type === frameTypes.REQ && end.send(encodeFrame(frameTypes.RES, 0, id, wrong));
    const session = await open(guest);
    await expect(session.setHostname('a')).rejects.toMatchObject({ code: 'protocol' });
    expect(guest.ends).toHaveLength(3);
    await session.closed;
  });

  it('closes with its signal', async () => {
    const guest = new FakeGuest();
    const abort = new AbortController();
    const session = await open(guest, { signal: abort.signal });
    const call = session.setHostname('a');
    abort.abort();
    await expect(call).rejects.toMatchObject({ code: 'aborted' });
    await session.closed;
    await expect.poll(() => guest.ends[0]?.client.destroyed).toBe(true);
  });

  it('ends with the machine at poweroff, answered or not', async () => {
    const guest = new FakeGuest();
    guest.onFrame = ({ type }, end) => type === frameTypes.REQ && end.cut();
    const session = await open(guest);
    await session.poweroff();
    await session.closed;
    expect(guest.ends).toHaveLength(1);
  });
});
