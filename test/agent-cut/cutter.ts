/** Connections that break: between client and agent, cut before a chosen frame or amid it. */
import { Duplex } from 'node:stream';
import { FRAME_HEADER_SIZE, SYNC_SIZE } from '@forkd/wire';
import { dialUnix } from './agent-host.js';

/** Small, seeded, and good enough to choose where to cut. */
export function randomFrom(seed: number): (below: number) => number {
  let state = (seed * 2654435761) >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state % below;
  };
}

export interface Cut {
  /** Which frame, counted from 0 over both directions of one connection; SYNC and its reply count. */
  frame: number;
  /** Amid it, or before its first byte. */
  amid: boolean;
}

/** Follows the frames of one direction. */
class Scanner {
  #header = Buffer.alloc(0);
  #headerSize = SYNC_SIZE;
  #payload = 0;
  #inside = false;

  /** Calls `onFrame` at each frame's start and `onHeader` once its length is known. */
  *walk(chunk: Buffer): Generator<{ at: number; starts: boolean; payload: number }> {
    let at = 0;
    while (at < chunk.length) {
      if (!this.#inside) {
        this.#inside = true;
        yield { at, starts: true, payload: 0 };
      }
      if (this.#header.length < this.#headerSize) {
        const take = Math.min(this.#headerSize - this.#header.length, chunk.length - at);
        this.#header = Buffer.concat([this.#header, chunk.subarray(at, at + take)]);
        at += take;
        if (this.#header.length < this.#headerSize) return;
        this.#payload = this.#headerSize === SYNC_SIZE ? 0 : this.#header.readUInt32LE(8);
        yield { at, starts: false, payload: this.#payload };
      }
      const take = Math.min(this.#payload, chunk.length - at);
      at += take;
      this.#payload -= take;
      if (this.#payload > 0) return;
      this.#inside = false;
      this.#header = Buffer.alloc(0);
      this.#headerSize = FRAME_HEADER_SIZE;
    }
  }
}

/** What dials, and how often what it made was cut. */
export class Cutter {
  readonly #socket: string;
  readonly #next: () => Cut | null;
  readonly #random: (below: number) => number;
  cuts = 0;
  /** Frames of the connections that were not cut. */
  frames = 0;

  /** `next` says where the next connection is cut; null: not at all. */
  constructor(socket: string, random: (below: number) => number, next: () => Cut | null) {
    this.#socket = socket;
    this.#random = random;
    this.#next = next;
  }

  dial = async (): Promise<Duplex> => {
    const inner = await dialUnix(this.#socket);
    const plan = this.#next();
    const out = new Scanner();
    const back = new Scanner();
    let count = 0;
    let broken = false;
    /** Where in this chunk to cut, or null. `pending`: bytes of the frame in hand that still pass. */
    const cutIn = (scanner: Scanner, chunk: Buffer): number | null => {
      let chosen: number | null = null;
      for (const { at, starts, payload } of scanner.walk(chunk)) {
        if (chosen !== null) break;
        if (starts) {
          const mine = plan !== null && count === plan.frame;
          count++;
          if (plan === null) this.frames++;
          if (!mine) continue;
          if (!plan.amid) return at;
          if (this.#random(2) === 0) chosen = at + 1 + this.#random(15);
          else amidPayload = scanner;
        } else if (amidPayload === scanner) {
          amidPayload = null;
          chosen = at + (payload > 0 ? this.#random(payload) : 0);
        }
      }
      return chosen === null ? null : Math.min(chosen, chunk.length);
    };
    let amidPayload: Scanner | null = null;
    const breakOff = (): void => {
      broken = true;
      this.cuts++;
      inner.destroy();
      setImmediate(() => outer.destroy());
    };
    const outer: Duplex = new Duplex({
      read: () => void inner.resume(),
      write: (chunk: Buffer, _, done) => {
        if (broken) return done();
        const cut = cutIn(out, chunk);
        if (cut === null) return void inner.write(chunk, () => done());
        // What is before the cut arrives; the rest never does.
        inner.write(chunk.subarray(0, cut), () => {
          breakOff();
          done();
        });
      },
      destroy: (error, done) => {
        broken = true;
        inner.destroy();
        done(error);
      },
    });
    inner.on('data', (chunk: Buffer) => {
      if (broken) return;
      const cut = cutIn(back, chunk);
      if (!outer.push(cut === null ? chunk : chunk.subarray(0, cut))) inner.pause();
      if (cut !== null) breakOff();
    });
    inner.on('error', () => outer.destroy());
    inner.on('close', () => outer.destroy());
    return outer;
  };
}
