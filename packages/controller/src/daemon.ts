/** The daemon's life: lock, registry, engine, what lives from before, sockets; and its end. */
import {
  accessSync,
  constants,
  type FSWatcher,
  lstatSync,
  mkdirSync,
  readFileSync,
  rmSync,
  watch,
} from 'node:fs';
import { isAbsolute, join } from 'node:path';
import { type DaemonInfo, homeFiles } from '@forkd/api';
import {
  type Engine,
  type EngineName,
  type EngineOptions,
  type LogFunction,
  openEngine,
  type StandbyOptions,
} from '@forkd/engine';
import { loadToken } from './auth.js';
import { Branches } from './branches.js';
import { Builds } from './builds.js';
import { ApiError } from './errors.js';
import { IdleTimer } from './idle.js';
import { checkSocketPath, listenLocal, listenRemote, parseBind, type TcpAddress } from './listen.js';
import { takeLock } from './lock.js';
import { type Log, logLevel, openLog } from './log.js';
import { createMetrics } from './metrics.js';
import { Registry } from './registry/registry.js';
import { Sandboxes } from './sandboxes.js';
import { buildServer } from './server.js';
import { Snapshots } from './snapshots.js';
import { Templates } from './templates.js';

/** How the daemon gets its engine. */
export type OpenEngine = (options: EngineOptions) => Promise<Engine>;

export interface ServeOptions {
  /** State directory, absolute. Made with mode 0700 when it does not exist. */
  home: string;
  /** Directory of the built native programs. */
  nativeDir: string;
  /** Directory of the template files that ship. */
  templatesDir?: string;
  /** HOST:PORT of TCP, or `none`. Default 127.0.0.1:8889, left out with a remark when that is taken. */
  bind?: string;
  /** File of the bearer token for TCP; made when it does not exist. Default: `token` in `home`. */
  tokenFile?: string;
  /** Seconds without sandboxes, builds and requests after which the daemon ends. Default 0: never. */
  idleSecs?: number;
  /** How much is made ahead of demand. Default: the engine's. */
  standby?: StandbyOptions;
  /** What runs builds that do not say. Default: the engine's. */
  engine?: EngineName;
  /** Default: daemon.log in `home`. */
  log?: Log;
  /** For tests. */
  openEngine?: OpenEngine;
}

export interface Daemon {
  readonly socket: string;
  /** HOST:PORT, or null. */
  readonly tcp: string | null;
  readonly log: Log;
  describe(): DaemonInfo;
  /** Ends it; sandboxes live on. May be called twice. */
  close(): Promise<void>;
  /** Resolves when it has ended, for whatever reason. */
  readonly closed: Promise<void>;
}

/** How long requests may take to their ends when the daemon is to end, in milliseconds. */
const finishMs = 5_000;

/** Version of this package. */
export const version = (
  JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { version: string }
).version;

/**
 * Starts a daemon. When the promise resolves, it answers.
 *
 * @throws ApiError daemon_running, home_unusable, address_unusable, invalid_argument; errors of the engine. Nothing is left behind then.
 */
export async function serve(options: ServeOptions): Promise<Daemon> {
  const { home } = options;
  const address = parseBind(options.bind);
  const socket = join(home, homeFiles.socket);
  prepareHome(home, socket);
  // What was begun is ended in the reverse order, on a failed start as well as at the end.
  const endings: (() => unknown)[] = [];
  const end = async (log: Log | undefined) => {
    for (const ending of endings.splice(0).reverse()) {
      try {
        await ending();
      } catch (error) {
        log?.error({ err: error }, 'a part of the daemon did not end well');
      }
    }
  };
  let log: Log | undefined;
  try {
    const lock = takeLock(join(home, homeFiles.lock), home);
    endings.push(() => lock.release());
    log = options.log ?? openLog(join(home, homeFiles.log), logLevel(process.env.FORKD_LOG_LEVEL));
    return await start({ ...options, log }, { socket, address, endings, end });
  } catch (error) {
    await end(log);
    throw error;
  }
}

interface Frame {
  socket: string;
  address: TcpAddress | null;
  endings: (() => unknown)[];
  end: (log: Log) => Promise<void>;
}

async function start(options: ServeOptions & { log: Log }, frame: Frame): Promise<Daemon> {
  const { home, log, idleSecs = 0 } = options;
  const { socket, address, endings } = frame;
  const tokenFile = options.tokenFile ?? join(home, homeFiles.token);
  const token = address === null ? null : loadToken(tokenFile);
  const registry = new Registry(join(home, 'registry.db'), (error) =>
    log.error({ err: error }, 'the registry is behind'),
  );
  endings.push(() => registry.close());
  const open = options.openEngine ?? openEngine;
  const engine: Engine = await open({
    home,
    nativeDir: options.nativeDir,
    log: logFunction(log),
    ...(options.standby && { standby: options.standby }),
    ...(options.engine && { engine: options.engine }),
  });
  endings.push(() => engine[Symbol.asyncDispose]());

  const metrics = createMetrics({
    sandboxes: () => sandboxes,
    builds: () => builds.running,
    standby: () => engine.standbyReport(),
  });
  const sandboxes: Sandboxes = new Sandboxes({
    engine,
    registry,
    log,
    onChange: (snapshotId) => {
      idle.touch();
      void snapshots.collect(snapshotId);
    },
    onFork: metrics.forked,
    beforeRemove: (id, machine) => branches.settle(id, machine),
    hasBranched: (id): boolean => snapshots.hasBranchOf(id),
  });
  const snapshots: Snapshots = new Snapshots({
    engine,
    registry,
    log,
    dependents: (id) => sandboxes.dependents(id),
  });
  const branches = new Branches({ sandboxes, snapshots, log });
  const builds = new Builds({ engine, snapshots, log, onChange: () => idle.touch() });
  const directories = [join(home, 'templates'), ...(options.templatesDir ? [options.templatesDir] : [])];
  const templates = new Templates({
    engine,
    snapshots,
    directories,
    building: (name) => builds.isBuilding(name),
  });
  const idle = new IdleTimer({
    secs: idleSecs,
    busy: () => sandboxes.live > 0 || builds.running > 0 || branches.running > 0,
    onIdle: () => {
      log.info({ secs: idleSecs }, 'nothing to do: the daemon ends');
      void close();
    },
  });
  endings.push(() => sandboxes.detach());

  const leftovers = await engine.sweepLeftovers();
  if (leftovers.length > 0) log.info({ leftovers }, 'what an earlier daemon left half made is removed');
  await snapshots.recover();
  await sandboxes.recover();

  let closing = false;
  let tcp: string | null = null;
  let tcpProblem: string | undefined;
  const startedAt = Math.floor(Date.now() / 1000);
  const describe = (): DaemonInfo => ({
    version,
    pid: process.pid,
    home,
    socket,
    tcp,
    ...(tcpProblem !== undefined && { tcp_problem: tcpProblem }),
    token_file: tcp === null ? null : tokenFile,
    started_at_unix: startedAt,
    idle_exit_secs: idleSecs,
    standby: engine.standbyReport(),
    sandboxes: sandboxes.live,
    builds: builds.running,
  });
  const services = {
    engine,
    sandboxes,
    snapshots,
    branches,
    templates,
    builds,
    metrics,
    log,
    version,
    describe,
    enter: () => idle.enter(),
    closing: () => closing,
  };
  const built = await buildServer(services, { token, boundHost: () => address?.host ?? null });
  endings.push(() => built.close());
  await listenLocal(built.app, socket, home);
  endings.push(() => rmSync(socket, { force: true }));
  if (address !== null) {
    try {
      tcp = await listenRemote(built.remote, address);
      if (!isLoopback(address.host))
        log.warn({ tcp }, 'TCP is not encrypted: tokens can be read on the network');
    } catch (error) {
      if (address.explicit) throw error;
      tcpProblem = error instanceof Error ? error.message : String(error);
      log.warn({ problem: tcpProblem }, 'no TCP');
    }
  }
  endings.push(() => builds.close());

  let settle: () => void = () => undefined;
  const closed = new Promise<void>((resolve) => {
    settle = resolve;
  });
  let ending: Promise<void> | null = null;
  const close = () => {
    ending ??= (async () => {
      closing = true;
      idle.close();
      log.info('the daemon ends');
      await builds.close();
      await branches.close(finishMs);
      await until(() => idle.active === 0, finishMs);
      await frame.end(log);
      settle();
    })();
    return ending;
  };
  const watcher = watchSocket(home, socket, () => {
    log.warn({ socket }, 'the socket is gone: the daemon ends, as nobody can reach it');
    void close();
  });
  endings.push(() => watcher.close());
  log.info({ socket, tcp, home, version }, 'the daemon is ready');
  idle.touch();
  return { socket, tcp, log, describe, close, closed };
}

function prepareHome(home: string, socket: string): void {
  if (!isAbsolute(home))
    throw new ApiError('home_unusable', { path: home, problem: 'it is not an absolute path' });
  checkSocketPath(socket, home);
  try {
    mkdirSync(home, { recursive: true, mode: 0o700 });
    accessSync(home, constants.R_OK | constants.W_OK | constants.X_OK);
  } catch (cause) {
    const problem = cause instanceof Error ? cause.message : String(cause);
    throw new ApiError('home_unusable', { path: home, problem }, { cause });
  }
}

/** Tells when the socket's name is gone, for example because the state directory was removed. */
function watchSocket(home: string, socket: string, onGone: () => void): FSWatcher {
  const watcher = watch(home, { persistent: false }, () => {
    if (lstatSync(socket, { throwIfNoEntry: false }) !== undefined) return;
    watcher.close();
    onGone();
  });
  watcher.on('error', () => undefined);
  return watcher;
}

/** Waits for a condition that changes with events of others; looks at it now and then, and gives up at the deadline. */
async function until(condition: () => boolean, deadlineMs: number): Promise<void> {
  const end = performance.now() + deadlineMs;
  while (!condition() && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.');
}

function logFunction(log: Log): LogFunction {
  return (level, message, facts) => log[level](facts ?? {}, message);
}
