import { link, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import Schema from 'typebox/schema';
import { EngineError } from '../errors.js';
import type { VmmUser } from '../machine/run-directory.js';
import type { FrozenDisk, PreparedDisk, VmmDisks } from '../vmm/types.js';
import { fileNode, vmmFiles } from './argv.js';
import { makeOverlay } from './disk.js';
import type { Qmp } from './qmp.js';
import { endJobs, stream } from './stream.js';

/** File in the run directory that names every overlay of a sandbox, lowest first. */
const RECORD = 'overlays.json';

/** Whose overlays they are. */
interface RunningQemu {
  readonly dir: string;
  readonly qmp: Qmp;
}

/** Node of the overlay that a child starts with. */
const FIRST = 'overlay';

const check = Schema.Compile(
  Type.Array(Type.String({ pattern: '^(overlay(-[0-9]+)?|whole-[0-9]+)$' }), { minItems: 1 }),
);

/** So many frozen overlays of branches that are gone are left alone: each costs a child of the next branch 3 ms. */
const MOST_LOOSE = 4;

/** Start of the names of nodes whose files hold a whole disk. */
const WHOLE = 'whole-';

/**
 * The overlays of one sandbox: each branch covers the one that was written to until then with a new one. Recorded in the run directory
 * before the switch, so that a later daemon knows their order.
 */
export class Overlays implements VmmDisks {
  readonly #vmm: RunningQemu;
  readonly #user: VmmUser | undefined;
  #nodes: string[] | undefined;

  constructor(vmm: RunningQemu, user: VmmUser | undefined) {
    this.#vmm = vmm;
    this.#user = user;
  }

  /** A switch takes no time, however much was written. */
  whySlow(): Promise<undefined> {
    return Promise.resolve(undefined);
  }

  /** Links the overlays that nothing writes to any more and the previous link does not hold. */
  async collect(covered: string | undefined, dir: string): Promise<FrozenDisk[]> {
    const frozen = (await this.#known()).slice(0, -1).filter((node) => isAbove(node, covered));
    return await Promise.all(
      frozen.map(async (node, index) => {
        const name = index === frozen.length - 1 ? 'disk' : `disk-${index}`;
        await link(join(this.#vmm.dir, fileOf(node)), join(dir, name));
        return { name, whole: node.startsWith(WHOLE) };
      }),
    );
  }

  async standOn(path: string, node: string): Promise<void> {
    const nodes = await this.#known();
    const at = nodes.indexOf(node);
    if (at < 0) return;
    const above = nodes[at + 1];
    if (above === undefined) throw new EngineError('engine_error', `no branch has frozen ${node}`);
    const whole = `${WHOLE}${numberOf(above)}`;
    const { qmp, dir } = this.#vmm;
    const replaced = [...nodes.slice(0, at + 1).reverse(), ...(await snapshotNodes(this.#vmm))];
    await link(path, join(dir, fileOf(whole)));
    await qmp.run('blockdev-add', {
      driver: 'raw',
      'node-name': whole,
      'read-only': true,
      file: fileNode(fileOf(whole), true),
    });
    await qmp.run('blockdev-reopen', {
      options: [
        {
          driver: 'qcow2',
          'node-name': above,
          'read-only': at + 2 < nodes.length,
          cache: { 'no-flush': true },
          file: `${above}-file`,
          backing: whole,
        },
      ],
    });
    this.#nodes = [whole, ...nodes.slice(at + 1)];
    await this.#record(this.#nodes);
    for (const name of replaced) await qmp.run('blockdev-del', { 'node-name': name });
    await Promise.all(nodes.slice(0, at + 1).map((old) => rm(join(dir, fileOf(old)), { force: true })));
  }

  async gather(covered: string | undefined): Promise<void> {
    const nodes = await this.#known();
    const kept = nodes[0]!.startsWith(WHOLE) ? 1 : 0;
    const old = nodes.slice(kept, -1);
    if (old.filter((node) => isAbove(node, covered)).length < MOST_LOOSE) return;
    const { qmp, dir } = this.#vmm;
    const base = kept ? nodes[0]! : (await snapshotNodes(this.#vmm))[0]!;
    await stream(qmp, nodes.at(-1)!, base);
    this.#nodes = [...nodes.slice(0, kept), nodes.at(-1)!];
    await this.#record(this.#nodes);
    for (const node of old.toReversed()) await qmp.run('blockdev-del', { 'node-name': node });
    await Promise.all(old.map((node) => rm(join(dir, fileOf(node)), { force: true })));
  }

  /** Makes and adds the overlay that the guest will write to after the switch. */
  async prepare(bytes: number): Promise<PreparedDisk> {
    const nodes = await this.#known();
    const below = nodes.at(-1)!;
    const node = `${FIRST}-${numberOf(below) + 1}`;
    await this.#record([...nodes, node]);
    await this.#make(node, bytes);
    await this.#vmm.qmp.run('blockdev-add', {
      driver: 'qcow2',
      'node-name': node,
      cache: { 'no-flush': true },
      file: { ...fileNode(fileOf(node), false), 'node-name': `${node}-file` },
      backing: null,
    });
    return { below, node };
  }

  /** Makes the file. What a branch that failed before its switch, or a daemon that died, has left of it goes first. */
  async #make(node: string, bytes: number): Promise<void> {
    const file = fileOf(node);
    const make = () => makeOverlay(this.#vmm.dir, bytes, this.#user, file);
    try {
      await make();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      const known = await this.#vmm.qmp.run<{ 'node-name': string }[]>('query-named-block-nodes', {
        flat: true,
      });
      if (known.some((one) => one['node-name'] === node))
        await this.#vmm.qmp.run('blockdev-del', { 'node-name': node });
      await rm(join(this.#vmm.dir, file));
      await make();
    }
  }

  /** The guest writes to the new one now. */
  async switched(prepared: PreparedDisk): Promise<void> {
    this.#nodes = [...(await this.#known()), prepared.node];
  }

  unknown(): void {
    this.#nodes = undefined;
  }

  /** The overlays in use, the written one last. What was recorded and never switched to is forgotten. */
  async #known(): Promise<string[]> {
    if (this.#nodes) return this.#nodes;
    await endJobs(this.#vmm.qmp);
    const [recorded, writable] = await Promise.all([this.#read(), writableNode(this.#vmm)]);
    const at = recorded.indexOf(writable);
    if (at < 0)
      throw new EngineError(
        'engine_error',
        `${RECORD} does not name the overlay ${writable} that QEMU writes to`,
      );
    this.#nodes = recorded.slice(0, at + 1);
    return this.#nodes;
  }

  async #read(): Promise<string[]> {
    const path = join(this.#vmm.dir, RECORD);
    const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
      return JSON.stringify([FIRST]); // Nothing was branched yet.
    });
    const value: unknown = JSON.parse(text);
    if (!check.Check(value)) throw new EngineError('engine_error', `${path} is damaged`);
    return value;
  }

  async #record(nodes: readonly string[]): Promise<void> {
    const path = join(this.#vmm.dir, RECORD);
    await writeFile(`${path}.new`, JSON.stringify(nodes), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }
}

function fileOf(node: string): string {
  if (node.startsWith(WHOLE)) return `${node}.raw`;
  return node === FIRST ? vmmFiles.overlay : `${node}.qcow2`;
}

/** The number in a node's name; 0 for the first overlay. */
function numberOf(node: string): number {
  return Number(/[0-9]+$/.exec(node)?.[0] ?? 0);
}

/** Whether a node holds something that the frozen overlay `covered`, and all below it, do not. A whole one is named by the overlay above it. */
function isAbove(node: string, covered: string | undefined): boolean {
  const last = numberOf(node) - (node.startsWith(WHOLE) ? 1 : 0);
  return covered === undefined || last > numberOf(covered);
}

/** The nodes of the snapshot's own disk, topmost first: their names are given when a child is loaded. */
async function snapshotNodes(vmm: RunningQemu): Promise<string[]> {
  const all = await vmm.qmp.run<{ 'node-name': string }[]>('query-named-block-nodes', { flat: true });
  const names = all.map((entry) => entry['node-name']).filter((name) => /^below-[0-9]+$/.test(name));
  return names.sort((a, b) => numberOf(b) - numberOf(a));
}

/** The node that the guest writes to now. */
async function writableNode(vmm: RunningQemu): Promise<string> {
  type Entry = { inserted?: { ro: boolean; 'node-name': string } };
  const entries = await vmm.qmp.run<Entry[]>('query-block');
  const node = entries.find((entry) => entry.inserted && !entry.inserted.ro)?.inserted?.['node-name'];
  if (node === undefined) throw new EngineError('vmm_failed', 'QEMU has no writable disk');
  return node;
}
