import { describe, expect, it } from 'vitest';
import { forkd } from '../support/cli.js';

describe('usage', () => {
  it.each([
    [['ls', '--bogus'], 64, "unknown option '--bogus'"],
    [['bogus'], 64, "unknown command 'bogus'"],
    [['fork'], 64, "missing required argument 'snapshot'"],
    [['fork', 'busybox', '-n', '0'], 64, '-n "0" is not a whole number from 1 to 1000'],
    [['fork', 'busybox', '-n', '-1'], 64, '-n "-1"'],
    [['fork', 'busybox', '-n', '1001'], 64, '-n "1001"'],
    [['fork', 'busybox', '-n', '3.5'], 64, '-n "3.5"'],
    [['fork', 'nope'], 66, 'there is no snapshot with the tag or id nope'],
    [['fork', '../etc'], 64, '../etc'],
    [['fork', 'busybox', '-e', '=x'], 64, '"=x" has no name'],
    [['snapshot', 'show', 'sn-0000000000000000'], 66, 'sn-0000000000000000'],
    [['show', 'sb-0000000000000000'], 66, 'there is no sandbox sb-0000000000000000'],
    [['logs', 'a\nb'], 66, 'a\\nb'],
    [['rm'], 64, 'no sandbox was named'],
    [['exec', '--timeout', '-1', 'sb-0000000000000000', 'true'], 64, '--timeout "-1"'],
    [['branch', 'busybox'], 66, 'there is no sandbox busybox'],
    [['branch', 'sb-0000000000000000', '-n', '2', '--no-wait'], 64, '-n and --no-wait contradict each other'],
    [['branch', 'sb-0000000000000000', '--mode', 'fast'], 64, 'Allowed choices are live, diff, full'],
    [['explore', 'busybox', '--', 'true'], 64, 'how many children?'],
    [['explore', 'busybox', '-n', '2'], 64, "missing required argument 'command'"],
    [['explore', 'busybox', '--each', '/nonexistent', '--', 'true'], 66, 'cannot read /nonexistent'],
    [['promote', 'sb-0000000000000000'], 64, "required option '--over <sandbox>'"],
    [['shell', 'sb-0000000000000000'], 64, 'stdin is not a terminal'],
  ])('forkd %j', async (args, code, message) => {
    const result = await forkd(args);
    expect(result.stderr).toContain(message);
    expect(result).toMatchObject({ code, stdout: '' });
  });

  it('answers errors as JSON when asked', async () => {
    const { code, stderr } = await forkd(['show', '--json', 'sb-0000000000000000']);
    expect(code).toBe(66);
    expect(JSON.parse(stderr)).toMatchObject({ code: 'sandbox_not_found' });
  });

  it('helps', async () => {
    const { code, stdout } = await forkd(['--help']);
    expect(code).toBe(0);
    for (const name of 'doctor quickstart template snapshot fork ls show exec eval shell cp logs rm serve branch explore promote tree'.split(
      ' ',
    )) {
      expect(stdout).toMatch(new RegExp(`^  ${name}\\b`, 'm'));
    }
  });
});
