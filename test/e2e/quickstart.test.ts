import type { SandboxInfo } from '@forkd/api';
import { describe, expect, it } from 'vitest';
import { forkd, forkdJson, startForkd } from '../support/cli.js';

interface Result {
  children: { id: string; answer: string; first_answer_ms: number }[];
  all_different: boolean;
}

const sandboxes = () => forkdJson<SandboxInfo[]>(['ls']);
const ours = (boxes: SandboxInfo[]) => boxes.filter(({ metadata }) => metadata.quickstart !== undefined);

describe('forkd quickstart', () => {
  it('shows children with different answers, and removes them', async () => {
    const result = await forkdJson<Result>(['quickstart', '--template', 'busybox', '-n', '3']);
    expect(result.children).toHaveLength(3);
    expect(result.all_different).toBe(true);
    expect(ours(await sandboxes())).toEqual([]);
  });

  it('prints a table without a terminal, in plain lines', async () => {
    const { code, stdout, stderr } = await forkd(['quickstart', '--template', 'busybox', '-n', '2']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/# +CHILD +FORKED +FIRST ANSWER +ANSWER +MEMORY/);
    expect(stdout).toContain('2, all different');
    expect(stdout).toContain('Try next:');
    expect(stderr).toContain('Forking 2 children ...');
    // biome-ignore lint/suspicious/noControlCharactersInRegex: that there are none
    expect(stdout + stderr).not.toMatch(/\u001b/);
  });

  it('leaves no child when interrupted', async () => {
    const child = startForkd(['quickstart', '--template', 'busybox', '-n', '4']);
    let stderr = '';
    let hasKilled = false;
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
      if (hasKilled || !stderr.includes('Forking 4 children ...')) return;
      hasKilled = child.kill('SIGINT');
    });
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(130);
    expect(ours(await sandboxes())).toEqual([]);
  });
});
