/** A daemon in this process for tests, on a home that goes with it. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Pool } from 'undici';
import { type Daemon, type ServeOptions, serve } from '../daemon.js';
import { silentLog } from '../log.js';
import { type FakeEngineControls, fakeEngine } from './fake-engine.js';

export interface Reply<T> {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
  /** The answer as JSON; a test says what it takes it for. */
  body: T;
}

export interface TestDaemon extends AsyncDisposable {
  home: string;
  daemon: Daemon;
  engine: FakeEngineControls;
  /** Sends a request over the unix socket. */
  call<T = unknown>(
    method: string,
    path: string,
    body?: unknown,
    headers?: Record<string, string>,
  ): Promise<Reply<T>>;
  /** Builds the template `base`. */
  build(): Promise<string>;
}

export function temporaryHome(): string {
  const home = mkdtempSync(join(tmpdir(), 'forkd-test-'));
  mkdirSync(join(home, 'templates'));
  writeFileSync(join(home, 'templates', 'base.yaml'), 'name: base\n');
  return home;
}

/** Starts a daemon; `home` is removed at its end unless it was given. */
export async function startDaemon(options: Partial<ServeOptions> = {}): Promise<TestDaemon> {
  const home = options.home ?? temporaryHome();
  let controls: FakeEngineControls | undefined;
  const daemon = await serve({
    nativeDir: '/nonexistent',
    log: silentLog(),
    bind: 'none',
    openEngine: async (engineOptions) => {
      const engine = fakeEngine(engineOptions);
      controls = engine.controls;
      return engine;
    },
    ...options,
    home,
  });
  const pool = new Pool('http://localhost', { socketPath: daemon.socket });
  const call = async <T>(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ) => {
    const answer = await pool.request({
      method: method as 'GET',
      path,
      headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
      body: body === undefined ? null : typeof body === 'string' ? body : JSON.stringify(body),
    });
    const text = await answer.body.text();
    let parsed: unknown = null;
    try {
      parsed = JSON.parse(text);
    } catch {
      // Not all answers are JSON.
    }
    return { status: answer.statusCode, headers: answer.headers, text, body: parsed as T };
  };
  return {
    home,
    daemon,
    engine: controls as FakeEngineControls,
    call,
    build: async () => {
      const { text } = await call('POST', '/v1/templates/build', { template: 'base', no_cache: true });
      const last = JSON.parse(text.trim().split('\n').at(-1) as string) as { snapshot_id: string };
      return last.snapshot_id;
    },
    [Symbol.asyncDispose]: async () => {
      await pool.destroy();
      await daemon.close();
      if (options.home === undefined) rmSync(home, { recursive: true, force: true });
    },
  };
}
