import { type ErrorCode, errorTable, isErrorCode } from '@forkd/api';
import { AgentError, agentErrorCodes, EngineError, engineErrorCodes } from '@forkd/engine';
import { describe, expect, it } from 'vitest';
import { agentErrorMap, commandError, toApiError } from './errors.js';

describe('every error', () => {
  it.each(engineErrorCodes)('of the engine has a row: %s', (code) => {
    expect(isErrorCode(code)).toBe(true);
    const { body, status } = toApiError(new EngineError(code, 'what happened to what'));
    expect(body).toMatchObject({ code, error: 'what happened to what' });
    expect(body.remedy).not.toMatch(/[{}]/);
    expect(status).toBe(errorTable[code].status);
  });

  it.each(agentErrorCodes)('of the agent has a row and leaves no brace unfilled: %s', (code) => {
    expect(isErrorCode(agentErrorMap[code])).toBe(true);
    const context = { sandbox: 'sb-1', value: '/a' };
    const { body } = toApiError(new AgentError(code, 'said the guest', { errno: 'EX' }), context);
    expect(`${body.error}${body.remedy}`).not.toMatch(/[{}]/);
    const command = commandError(new AgentError(code, 'said the guest'), 'sb-1', 'ls', '/x').body;
    expect(`${command.error}${command.remedy}`).not.toMatch(/[{}]/);
  });

  it('of the table has a message, a remedy and a status that is an error', () => {
    for (const [code, row] of Object.entries(errorTable)) {
      expect(row.status, code).toBeGreaterThanOrEqual(400);
      expect(row.message, code).not.toBe('');
      expect(row.remedy.length, code).toBeGreaterThan(10);
    }
  });

  it('that nobody foresaw is a defect with its cause', () => {
    const cause = new Error('x is undefined');
    const error = toApiError(cause);
    expect(error).toMatchObject({ code: 'internal' satisfies ErrorCode, status: 500, cause });
  });
});

describe('a command that cannot be started', () => {
  const of = (code: 'not_found' | 'permission' | 'not_a_directory' | 'too_large', cwd?: string) =>
    commandError(new AgentError(code, 'said the guest'), 'sb-1', 'frobnicate', cwd).body;

  it('is named', () => {
    expect(of('not_found')).toMatchObject({
      code: 'command_not_found',
      error: 'command "frobnicate" is not in the sandbox',
    });
    expect(of('permission').code).toBe('command_not_executable');
    expect(of('not_a_directory', '/etc/passwd')).toMatchObject({ code: 'guest_invalid' });
    expect(of('not_a_directory', '/etc/passwd').error).toContain('/etc/passwd');
    expect(of('too_large').code).toBe('argument_too_large');
  });

  it('for want of its working directory names that', () => {
    const text = "the working directory '/none' cannot be entered: No such file or directory";
    const { body } = commandError(new AgentError('not_found', text), 'sb-1', 'true', '/none');
    expect(body.code).toBe('guest_invalid');
    expect(body.error).toContain('"/none"');
  });
});
