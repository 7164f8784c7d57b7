import { execFile, spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readSync } from 'node:fs';
import {
  chmod,
  chown,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  truncate,
  writeFile,
} from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { EngineError } from '../errors.js';
import { connectUnix } from '../unix-socket.js';
import { adoptShim, probeAbilities, type RamRange, type Shim, type ShimSpec, startShim } from './index.js';
import { runs } from './record.js';

const run = promisify(execFile);
const root = path.resolve(import.meta.dirname, '../../../..');
const binary = path.join(root, 'build/native', process.env.FORKD_TEST_SHIM ?? 'forkd-shim');
const QEMU = '/usr/bin/qemu-system-x86_64';
const MIB = 1024 * 1024;
const RAM = 64 * MIB;
const isRoot = process.getuid?.() === 0;
const user = isRoot ? { uid: 64_900, gid: 64_900 } : {};

let home: string;
const shims: Shim[] = [];
const vmms: { vmmPid: number; vmmStartTime: bigint }[] = [];

beforeAll(async () => {
  home = await mkdtemp(path.join(tmpdir(), 'forkd-shim-'));
});
afterEach(async () => {
  for (const shim of shims.splice(0)) {
    await shim.kill().catch(() => {});
    await shim.end().catch(() => {});
  }
  for (const vmm of vmms.splice(0)) expect(await runs(vmm.vmmPid, vmm.vmmStartTime)).toBe(false);
});
afterAll(() => rm(home, { recursive: true, force: true }));

let runNumber = 0;
async function runDirectory(name = `sb-${runNumber++}`): Promise<string> {
  const dir = path.join(home, name);
  await mkdir(dir, { recursive: true, mode: 0o700 });
  if (isRoot) {
    await chown(dir, 0, 64_900);
    await chmod(dir, 0o1770);
  }
  return dir;
}

function qemu(dir: string, sockets = ['qmp.sock', 'qmp-shim.sock']): ShimSpec {
  const argv = [QEMU, '-M', 'microvm,memory-backend=mem', '-nodefaults', '-display', 'none', '-m', '64'];
  argv.push('-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny');
  argv.push('-object', `memory-backend-memfd,id=mem,size=${RAM},share=off`, '-S', '-incoming', 'defer');
  for (const [index, name] of sockets.entries())
    argv.push(
      '-chardev',
      `socket,id=c${index},fd=@fd:${name}@,server=on,wait=off`,
      '-mon',
      `chardev=c${index},mode=control`,
    );
  return { dir, argv, sockets, ...user };
}

async function start(spec: ShimSpec): Promise<Shim> {
  return owned(await startShim(spec, { binary }));
}

function owned(shim: Shim): Shim {
  shims.push(shim);
  vmms.push({ vmmPid: shim.vmmPid, vmmStartTime: shim.vmmStartTime });
  return shim;
}

/** A monitor: the greeting has come, so the VMM is up. */
class Monitor {
  readonly socket: net.Socket;
  #text = '';
  #waiting: (() => void) | null = null;
  constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('data', (chunk) => {
      this.#text += String(chunk);
      this.#waiting?.();
    });
  }
  static async open(dir: string, name = 'qmp.sock'): Promise<Monitor> {
    const monitor = new Monitor(await connectUnix(path.join(dir, name)));
    await monitor.line();
    return monitor;
  }
  async line(): Promise<string> {
    while (!this.#text.includes('\n')) await new Promise<void>((resolve) => (this.#waiting = resolve));
    const [line] = this.#text.split('\n', 1);
    this.#text = this.#text.slice(line!.length + 1);
    return line!.trim();
  }
  async run(command: string): Promise<unknown> {
    this.socket.write(`{"execute":"${command}"}\n`);
    for (;;) {
      const answer = JSON.parse(await this.line());
      if (!('event' in answer)) return answer.return ?? answer;
    }
  }
}

function readMemory(pid: number, address: bigint, length: number): Buffer {
  const fd = openSync(`/proc/${pid}/mem`, 'r');
  const bytes = Buffer.alloc(length);
  readSync(fd, bytes, 0, length, address);
  closeSync(fd);
  return bytes;
}

async function snapshot(): Promise<{ base: string; layer: string }> {
  const base = path.join(home, 'base');
  const layer = path.join(home, 'layer');
  await writeFile(base, '');
  await truncate(base, RAM);
  const handle = await open(base, 'r+');
  for (const page of [0, 1, 2, 300, RAM / 4096 - 1])
    await handle.write(Buffer.alloc(4096, page % 251), 0, 4096, page * 4096);
  await handle.close();
  await writeFile(layer, Buffer.concat([Buffer.alloc(4096, 0xa1), Buffer.alloc(32 * 4096, 0xa2)]));
  return { base, layer };
}

function graftRequest(ram: RamRange[], files: { base: string; layer: string }) {
  return {
    ram,
    files: [
      { path: files.base, bytes: BigInt(RAM) },
      { path: files.layer, bytes: BigInt(33 * 4096) },
    ],
    extents: [
      { kind: 'map', file: 0, fileOffset: 0n, guestOffset: 0n, length: BigInt(RAM) },
      { kind: 'copy', file: 1, fileOffset: 0n, guestOffset: 4096n, length: 4096n },
      { kind: 'zero', file: 0, fileOffset: 0n, guestOffset: 2n * 4096n, length: 4096n },
      { kind: 'map', file: 1, fileOffset: 4096n, guestOffset: 100n * 4096n, length: 32n * 4096n },
    ] as const,
  };
}

function expectGrafted(shim: Shim, ram: RamRange[]): void {
  const page = (n: number) => readMemory(shim.vmmPid, ram[0]!.address + BigInt(n * 4096), 4096);
  expect(page(0)).toEqual(Buffer.alloc(4096, 0));
  expect(page(1)).toEqual(Buffer.alloc(4096, 0xa1));
  expect(page(2)).toEqual(Buffer.alloc(4096, 0));
  expect(page(100)).toEqual(Buffer.alloc(4096, 0xa2));
  expect(page(131)).toEqual(Buffer.alloc(4096, 0xa2));
  expect(page(132)).toEqual(Buffer.alloc(4096, 0));
  expect(page(300)).toEqual(Buffer.alloc(4096, 300 % 251));
}

describe('a /dev/kvm of its own', () => {
  const itHere = it.skipIf(!isRoot || !existsSync('/dev/kvm'));
  itHere('opens to a VMM whose user may not open that of the host, which stays as it is', async () => {
    const before = await stat('/dev/kvm');
    const dir = await runDirectory();
    const argv = ['/bin/sh', '-c', 'exec 3<>/dev/kvm && echo opened as $(id -u); cat /dev/kvm >/dev/null'];
    const shim = await start({ dir, argv, sockets: [], ...user, ownKvm: true });
    expect((await shim.exited).lastWords).toMatch(/^opened as 64900\n/);
    expect(await readFile('/proc/self/mounts', 'utf8')).not.toMatch(/kvm/);
    expect((await readdir(dir)).sort()).toEqual(['shim.json', 'shim.log', 'shim.sock', 'vmm.log']);
    const { mode, uid, gid } = await stat('/dev/kvm');
    expect({ mode, uid, gid }).toEqual({ mode: before.mode, uid: before.uid, gid: before.gid });
  });
});

describe('an injection', () => {
  it('leaves its target alive and right, wherever its tracer dies', { timeout: 120_000 }, async () => {
    const folder = path.join(root, 'native/shim');
    const program = path.join(home, 'test_inject');
    const flags = [
      '-std=gnu11',
      '-O2',
      '-Wall',
      '-Wextra',
      '-Werror',
      '-DSHIM_TEST',
      '-o',
      program,
      '-lpthread',
    ];
    await run('gcc', [
      ...['test_inject.c', 'inject.c', 'follow.c', 'maps.c', 'probe.c', 'base.c'].map((name) =>
        path.join(folder, name),
      ),
      ...flags,
    ]);
    const { stdout } = await run(program).catch((error: { code?: number; stdout?: string }) => {
      if (error.code === 77) return { stdout: error.stdout ?? '' };
      throw error;
    });
    expect(stdout).toMatch(/waiting target.*\ncomputing target.*\nopening target|skipped/);
  });
});

describe('a shim', () => {
  it('tells what it may do on this host', async () => {
    const abilities = await probeAbilities(binary);
    expect(abilities.changeUser).toBe(isRoot);
    if (!abilities.injection) expect(abilities.reason).toMatch(/./);
  });

  it('starts a VMM of its own session, user and environment, with no descriptor but its own', async () => {
    const dir = await runDirectory();
    const shim = await start({ dir, argv: ['/bin/sleep', '60'], sockets: ['a.sock'], ...user });
    const of = async (name: string) => readFile(`/proc/${shim.vmmPid}/${name}`, 'latin1');
    expect(
      (await of('environ'))
        .split('\0')
        .filter(Boolean)
        .map((pair) => pair.split('=')[0]),
    ).toEqual(['PATH', 'LC_ALL', 'MALLOC_ARENA_MAX']);
    const stat = (await of('stat')).split(') ')[1]!.split(' ');
    expect(stat.slice(1, 4).map(Number)).toEqual([shim.pid, shim.vmmPid, shim.vmmPid]);
    expect((await readdir(`/proc/${shim.vmmPid}/fd`)).sort()).toEqual(['0', '1', '10', '2']);
    const status = await of('status');
    if (isRoot)
      expect(status).toMatch(/Uid:\t64900\t64900\t64900\t64900\nGid:\t64900\t64900\t64900\t64900\n/);
    expect(status).toMatch(/SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n/);
    expect(status).toMatch(/^THP_enabled:\t0$/m);
    expect((await of('oom_score_adj')).trim()).toBe('0');
    expect((await readdir(`/proc/${shim.pid}/fd`)).length).toBeLessThan(12);
  });

  it('grafts mapped, copied and zeroed pages into a VMM under its own filter', async () => {
    const dir = await runDirectory();
    const shim = await start(qemu(dir));
    const monitor = await Monitor.open(dir);
    const ram = await shim.findRam('memfd:');
    expect(ram).toHaveLength(1);
    expect(ram[0]!.length).toBe(BigInt(RAM));
    const before = await readdir(`/proc/${shim.vmmPid}/fd`);
    await shim.graft(graftRequest(ram, await snapshot()));
    expectGrafted(shim, ram);
    expect(await readdir(`/proc/${shim.vmmPid}/fd`)).toEqual(before);
    if (shim.abilities.injection || shim.abilities.attach) {
      const maps = await readFile(`/proc/${shim.vmmPid}/maps`, 'utf8');
      expect(maps.split('\n').filter((line) => line.endsWith(path.join(home, 'layer')))).toHaveLength(1);
    }
    expect(await monitor.run('qmp_capabilities')).toEqual({});
    expect(await monitor.run('query-status')).toMatchObject({ running: false });
    monitor.socket.destroy();
  });

  it('copies everything where injection is not permitted', async () => {
    const dir = await runDirectory();
    const abilities = { injection: false, attach: false, changeUser: isRoot, reason: 'a test' };
    const shim = owned(await startShim(qemu(dir), { binary, abilities }));
    (await Monitor.open(dir)).socket.destroy();
    expect(shim.abilities).toEqual(abilities);
    const ram = await shim.findRam('memfd:');
    await shim.graft(graftRequest(ram, await snapshot()));
    expectGrafted(shim, ram);
    expect(await readFile(`/proc/${shim.vmmPid}/maps`, 'utf8')).not.toContain(path.join(home, 'layer'));
  });

  it('maps into QEMU where no filter can be suspended', async () => {
    const dir = await runDirectory();
    const abilities = { injection: false, attach: true, changeUser: isRoot, reason: 'a test' };
    const shim = owned(await startShim(qemu(dir), { binary, abilities }));
    (await Monitor.open(dir)).socket.destroy();
    const ram = await shim.findRam('memfd:');
    await shim.graft(graftRequest(ram, await snapshot()));
    expectGrafted(shim, ram);
    expect(await readFile(`/proc/${shim.vmmPid}/maps`, 'utf8')).toContain(path.join(home, 'layer'));
  });

  it('refuses a graft outside guest RAM, past a file, or of a file that is too short', async () => {
    const dir = await runDirectory();
    const shim = await start(qemu(dir));
    (await Monitor.open(dir)).socket.destroy();
    const ram = await shim.findRam('memfd:');
    const files = [{ path: (await snapshot()).layer, bytes: BigInt(33 * 4096) }];
    const one = { kind: 'map', file: 0, fileOffset: 0n, guestOffset: 0n, length: 4096n } as const;
    const graft = (extent: object, given = files) =>
      shim.graft({ ram, files: given, extents: [{ ...one, ...extent }] });
    await expect(graft({ guestOffset: BigInt(RAM) })).rejects.toThrow(/outside guest RAM/);
    await expect(graft({ guestOffset: 2n ** 64n - 4096n })).rejects.toThrow(/outside guest RAM/);
    await expect(graft({ fileOffset: 33n * 4096n })).rejects.toThrow(/past its file/);
    await expect(graft({ length: 100n })).rejects.toThrow(/whole pages/);
    await expect(graft({}, [{ path: files[0]!.path, bytes: BigInt(34 * 4096) }])).rejects.toThrow(
      /the snapshot needs 139264/,
    );
    await expect(graft({}, [{ path: '/nonexistent', bytes: 4096n }])).rejects.toThrow(/nonexistent/);
  });

  it('reports death by signal, an exit code, and the last words', async () => {
    const killed = await start({ dir: await runDirectory(), argv: ['/bin/sleep', '60'], sockets: [] });
    expect(await killed.kill()).toEqual({ kind: 'signaled', signal: 'SIGKILL', lastWords: '' });
    const failed = await start({
      dir: await runDirectory(),
      argv: ['/bin/sh', '-c', 'echo no such machine >&2; exit 3'],
      sockets: [],
    });
    expect(await failed.exited).toEqual({ kind: 'exited', code: 3, lastWords: 'no such machine\n' });
  });

  it('names the program that cannot be executed, and leaves nothing', async () => {
    const dir = await runDirectory();
    const failure = startShim({ dir, argv: ['/nonexistent/qemu'], sockets: ['a.sock'] }, { binary });
    await expect(failure).rejects.toThrow(/execute \/nonexistent\/qemu: No such file or directory/);
    await expect(failure).rejects.toMatchObject({ code: 'vmm_failed', details: { errno: 'ENOENT' } });
    expect((await readdir(dir)).sort()).toEqual(['shim.log', 'vmm.log']);
    await expect(
      startShim({ dir, argv: [QEMU], sockets: [] }, { binary: '/nonexistent/shim' }),
    ).rejects.toMatchObject({ code: 'host_unfit' });
    await expect(startShim({ dir, argv: [QEMU, '@fd:b.sock@'], sockets: [] }, { binary })).rejects.toThrow(
      /names no socket/,
    );
    await expect(startShim({ dir, argv: [QEMU], sockets: ['../up'] }, { binary })).rejects.toThrow(
      /no name for a socket/,
    );
  });

  it('replaces stale sockets, and works in a directory whose path is longer than an address', async () => {
    const dir = await runDirectory(path.join('x'.repeat(100), 'y'.repeat(100)));
    for (const name of ['qmp.sock', 'shim.sock']) await writeFile(path.join(dir, name), 'stale');
    const shim = await start(qemu(dir, ['qmp.sock']));
    (await Monitor.open(dir)).socket.destroy();
    shim.detach();
    expect((await owned(await adoptShim(dir, { binary })).findRam('memfd:'))[0]!.length).toBe(BigInt(RAM));
  });

  it('keeps its directory to itself', async () => {
    const dir = await runDirectory();
    await start({ dir, argv: ['/bin/sleep', '60'], sockets: [] });
    await expect(startShim({ dir, argv: ['/bin/sleep', '60'], sockets: [] }, { binary })).rejects.toThrow(
      /belongs to another shim/,
    );
  });

  it('is ended: no process, socket or descriptor stays', async () => {
    const dir = await runDirectory();
    const shim = await start({ dir, argv: ['/bin/sleep', '60'], sockets: ['a.sock'] });
    await shim.kill();
    await shim.end();
    expect(await runs(shim.vmmPid, shim.vmmStartTime)).toBe(false);
    expect((await readdir(dir)).sort()).toEqual(['shim.json', 'shim.log', 'vmm.log']);
  });
});

describe('a VMM whose daemon or shim dies', () => {
  it('is found again by the next daemon, which learns how it ended meanwhile', async () => {
    const dir = await runDirectory();
    const first = await start(qemu(dir));
    const monitor = await Monitor.open(dir);
    await monitor.run('qmp_capabilities'); // answered by the main loop: QEMU handles signals by now
    monitor.socket.destroy();
    first.detach();
    const second = owned(await adoptShim(dir, { binary }));
    expect([second.pid, second.vmmPid]).toEqual([first.pid, first.vmmPid]);
    second.detach();
    process.kill(second.vmmPid, 'SIGTERM');
    const third = owned(await adoptShim(dir, { binary }));
    expect(await third.exited).toMatchObject({ kind: 'exited', code: 0 });
    await third.end();
    await expect(adoptShim(dir, { binary })).rejects.toMatchObject({
      code: 'sandbox_exited',
      details: { exit: { kind: 'exited', code: 0 } },
    });
  });

  it('outlives its shim, and its next one grafts and kills', async () => {
    const dir = await runDirectory();
    const shim = await start(qemu(dir));
    (await Monitor.open(dir)).socket.destroy();
    shim.detach();
    process.kill(shim.pid, 'SIGKILL');
    const next = owned(await adoptShim(dir, { binary }));
    expect(next.vmmPid).toBe(shim.vmmPid);
    expect(next.pid).not.toBe(shim.pid);
    const ram = await next.findRam('memfd:');
    await next.graft(graftRequest(ram, await snapshot()));
    expectGrafted(next, ram);
    expect(await next.kill()).toMatchObject({ kind: 'unknown' });
  });

  it('gets a new shim at once where its daemon is connected', async () => {
    const dir = await runDirectory();
    const shim = await start(qemu(dir));
    (await Monitor.open(dir)).socket.destroy();
    const old = shim.pid;
    process.kill(old, 'SIGKILL');
    for (;;) {
      const found = await shim.findRam('memfd:').catch(() => null);
      if (found) break;
    }
    expect(shim.pid).not.toBe(old);
    expect(await shim.kill()).toMatchObject({ kind: 'unknown' });
  });

  it('gets a new shim where its directory was renamed since, after the signal of its start', async () => {
    const dir = await runDirectory();
    const starting = new AbortController();
    const shim = await startShim(qemu(dir), { binary, signal: starting.signal });
    starting.abort();
    const renamed = `${dir}-renamed`;
    await rename(dir, renamed);
    const old = shim.pid;
    try {
      process.kill(old, 'SIGKILL');
      // Until it is told, it finds nothing: that is no end of the VMM.
      await expect(shim.findRam('memfd:')).rejects.toMatchObject({ code: 'vmm_failed' });
      shim.moved(renamed);
      while (!(await shim.findRam('memfd:').catch(() => null)));
      expect(shim.pid).not.toBe(old);
    } finally {
      expect(await shim.kill()).toMatchObject({ kind: 'unknown' });
      await shim.end();
      await rm(renamed, { recursive: true, force: true });
    }
  });

  it('is gone when both are: an unknown end, never a success', async () => {
    const dir = await runDirectory();
    const shim = await start({ dir, argv: ['/bin/sleep', '60'], sockets: [] });
    process.kill(shim.pid, 'SIGKILL');
    process.kill(shim.vmmPid, 'SIGKILL');
    expect(await shim.exited).toMatchObject({ kind: 'unknown' });
    await shim.end();
    await expect(adoptShim(dir, { binary })).rejects.toBeInstanceOf(EngineError);
    await expect(adoptShim(await runDirectory(), { binary })).rejects.toMatchObject({
      code: 'sandbox_exited',
    });
  });

  it('survives a signal to the group of its daemon', async () => {
    const dir = await runDirectory();
    const script = `import { startShim } from ${JSON.stringify(path.join(root, 'packages/engine/dist/shim/index.js'))};
      await startShim(${JSON.stringify({ dir, argv: ['/bin/sleep', '60'], sockets: [] })}, { binary: ${JSON.stringify(binary)} });
      process.stdout.write('up'); setInterval(() => {}, 1000);`;
    const daemon = spawn(process.execPath, ['--input-type=module', '-e', script], {
      detached: true,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await new Promise((resolve) => daemon.stdout.once('data', resolve));
    const over = new Promise((resolve) => daemon.once('exit', resolve));
    process.kill(-daemon.pid!, 'SIGINT');
    process.kill(-daemon.pid!, 'SIGKILL');
    await over;
    const shim = owned(await adoptShim(dir, { binary }));
    expect(await runs(shim.vmmPid, shim.vmmStartTime)).toBe(true);
  });
});

describe('a resume recipe', () => {
  /** A paused VMM's second monitor: greets, answers every line, notes what came. */
  async function monitor(dir: string): Promise<{ lines: string[]; heard: Promise<void> }> {
    const lines: string[] = [];
    let tell = (): void => {};
    const heard = new Promise<void>((resolve) => {
      tell = resolve;
    });
    const server = net.createServer((socket) => {
      socket.write('{"QMP":{}}\n');
      socket.on('error', () => {});
      socket.on('data', (chunk) => {
        lines.push(String(chunk));
        socket.write('{"return":{}}\n');
        if (lines.length === 2) tell();
      });
      socket.on('close', () => server.close());
    });
    await new Promise<void>((resolve) => server.listen(path.join(dir, 'm.sock'), resolve));
    server.unref();
    return { lines, heard };
  }
  const recipe = (deadlineMs: number) => ({
    socket: 'm.sock',
    lines: ['capabilities\n', 'cont\n'],
    deadlineMs,
  });

  async function sleeper(): Promise<{ dir: string; shim: Shim }> {
    const dir = await runDirectory();
    return { dir, shim: await start({ dir, argv: ['/bin/sleep', '60'], sockets: [] }) };
  }

  it('is sent when the daemon is gone', async () => {
    const { dir, shim } = await sleeper();
    const seen = await monitor(dir);
    await shim.armResume(recipe(60_000));
    shim.detach();
    await seen.heard;
    expect(seen.lines).toEqual(['capabilities\n', 'cont\n']);
    owned(await adoptShim(dir, { binary }));
  });

  it('is sent when its deadline passes, and says so', async () => {
    const { dir, shim } = await sleeper();
    const seen = await monitor(dir);
    await shim.armResume(recipe(30));
    await seen.heard;
    expect(await shim.disarmResume()).toBe(false);
  });

  it('is not sent once disarmed', async () => {
    const { dir, shim } = await sleeper();
    const seen = await monitor(dir);
    await shim.armResume(recipe(60_000));
    expect(await shim.disarmResume()).toBe(true);
    expect(await shim.disarmResume()).toBe(false);
    shim.detach();
    const next = owned(await adoptShim(dir, { binary }));
    await next.armResume(recipe(0));
    await seen.heard; // what comes first is the second recipe's
    expect(seen.lines).toEqual(['capabilities\n', 'cont\n']);
  });

  it('resumes a real QEMU through its second monitor', async () => {
    const dir = await runDirectory();
    const spec = qemu(dir);
    const shim = await start({
      ...spec,
      argv: spec.argv.filter((arg) => arg !== '-incoming' && arg !== 'defer'),
    });
    const first = await Monitor.open(dir);
    await first.run('qmp_capabilities');
    await shim.armResume({
      socket: 'qmp-shim.sock',
      lines: ['{"execute":"qmp_capabilities"}\n', '{"execute":"cont"}\n'],
      deadlineMs: 1,
    });
    for (;;) if (JSON.parse(await first.line()).event === 'RESUME') break;
    first.socket.destroy();
  });
});
