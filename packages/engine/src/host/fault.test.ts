import { describe, expect, it } from 'vitest';
import { EngineError } from '../errors.js';
import { RunError } from '../guest/run.js';
import { errnoIn, hostFault } from './fault.js';

const ofNode = (code: string, path?: string) =>
  Object.assign(new Error(`${code}: it failed`), { code, path });

describe('a fault of the host', () => {
  it.each([
    ['ENOSPC', 'insufficient_disk', /Free space/],
    ['EDQUOT', 'insufficient_disk', /Free space/],
    ['EMFILE', 'limit_reached', /ulimit -n/],
    ['ENFILE', 'limit_reached', /ulimit -n/],
    ['EAGAIN', 'limit_reached', /pids\.max/],
    ['ENOMEM', 'insufficient_memory', /Remove sandboxes/],
  ])('%s has the code %s', (errno, code, remedy) => {
    const fault = hostFault(ofNode(errno));
    expect(fault).toMatchObject({ code, details: { errno } });
    expect(fault?.remedy).toMatch(remedy);
    expect(fault?.message).toContain('it failed');
  });

  it('says where, by the error or by who asks', () => {
    expect(hostFault(ofNode('ENOSPC', '/a/b'), 'x', '/c')?.message).toMatch(/^x: no space .* under \/a\/b /);
    expect(hostFault(ofNode('ENOSPC'), 'x', '/c')?.message).toMatch(/under \/c /);
    const again = hostFault(hostFault(ofNode('ENOSPC')), 'a snapshot', '/c');
    expect(again?.message).toBe('a snapshot: no space left on the disk under /c (ENOSPC: it failed)');
    expect(hostFault(again, 'y', '/d')).toBe(again);
  });

  it('is seen in what a shim refused, and in what a program printed', () => {
    const refused = new EngineError('vmm_failed', 'write the layer', { details: { errno: 'ENOSPC' } });
    expect(hostFault(refused)).toMatchObject({ code: 'insufficient_disk', cause: refused });
    const failed = new RunError('failed', ['cp'], 'ended with 1', 'cp: writing: No space left on device\n');
    expect(hostFault(failed)).toMatchObject({ code: 'insufficient_disk' });
    expect(errnoIn('qemu: Failed to create thread: Resource temporarily unavailable')).toBe('EAGAIN');
    expect(errnoIn('all is well')).toBeUndefined();
  });

  it.each([ofNode('ENOENT'), new Error('x'), 'x', new EngineError('timeout', 'late')])(
    'is not %s',
    (error) => {
      expect(hostFault(error)).toBeUndefined();
    },
  );
});
