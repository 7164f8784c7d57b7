import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import * as agent from './agent.js';
import { agentHeader } from './c-header.js';

describe('agent protocol', () => {
  it('gives each name a number of its own', () => {
    const tables = [
      agent.frameTypes,
      agent.requestStates,
      agent.verbs,
      agent.fields,
      agent.watchEvents,
      agent.statusCodes,
    ];
    for (const table of tables) {
      const numbers = Object.values(table);
      expect(new Set(numbers).size).toBe(numbers.length);
    }
  });

  it('keeps its magics out of headers: neither 0 nor the letter that begins a frame', () => {
    const magic = Buffer.from(agent.SYNC_MAGIC_HEX, 'hex');
    expect(magic).toHaveLength(16);
    expect(Buffer.from(agent.SYNC_REPLY_MAGIC_HEX, 'hex')).toHaveLength(16);
    expect(magic.includes(0)).toBe(false);
    expect(magic.includes('f')).toBe(false);
    // No end of the magic is also its beginning, so a receiver may look for it with one pass.
    for (let n = 1; n < 16; n++) expect(magic.subarray(0, n).equals(magic.subarray(16 - n))).toBe(false);
  });

  it('is the same in the C header that the guest is built with', () => {
    const header = new URL('../../../native/agent/protocol.gen.h', import.meta.url);
    expect(readFileSync(header, 'utf8')).toBe(agentHeader());
  });
});
