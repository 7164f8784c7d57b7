import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { type Chain, type Manifest, MOST_LINKS, type SnapshotStore } from '../snapshot/index.js';
import type { VmmDisks } from '../vmm/types.js';

/** The link that a source's next branch is compared with and stands on: its branch before, or the snapshot that it was forked from. */
export class PreviousLink {
  readonly #store: SnapshotStore;
  readonly #fork: Manifest;
  #manifest: Manifest;
  /** The overlay that each link of this source's ends with. */
  readonly #nodes = new Map<string, string>();

  /** @param fork of the snapshot that the source was forked from; its life keeps that */
  constructor(store: SnapshotStore, fork: Manifest) {
    this.#store = store;
    this.#fork = fork;
    this.#manifest = fork;
  }

  /** What it ends with: the source's frozen overlay; none where it is the snapshot of the fork. */
  get covered(): string | undefined {
    return this.#nodes.get(this.#manifest.id);
  }

  /** Its chain; where it is gone, that of the snapshot that the source was forked from. One that is as long as can be is flattened first. */
  async chain(): Promise<{ chain: Chain; pin: Disposable }> {
    const store = this.#store;
    try {
      await store.inspect(await store.manifest(this.#manifest.id));
      return await this.#short(this.#manifest.id);
    } catch (error) {
      if (!(error instanceof EngineError) || this.#manifest.id === this.#fork.id) throw error;
      this.#manifest = this.#fork;
      return await this.#short(this.#fork.id);
    }
  }

  /** Lets the source's own disk stand on the file of a link that has been flattened, in the place of all overlays up to it. */
  async shortenDisks(chain: Chain, disks: VmmDisks): Promise<void> {
    const flat = chain.links[0]!;
    const node = this.#nodes.get(flat.id);
    if (node === undefined || !flat.files.disk.whole) return;
    const path = join(this.#store.directory(flat.id), flat.files.disk.name);
    await disks.standOn(path, node);
  }

  /** The disk of a branch was frozen: it ends with this overlay. */
  frozen(id: string, node: string): void {
    this.#nodes.set(id, node);
  }

  /** A branch was written. */
  advance(written: Manifest): void {
    this.#manifest = written;
  }

  async #short(id: string): Promise<{ chain: Chain; pin: Disposable }> {
    const pinned = await this.#store.pinnedChain(id);
    const { links, disks } = pinned.chain;
    if (links.length < MOST_LINKS && disks.length < MOST_LINKS) return pinned;
    pinned.pin[Symbol.dispose]();
    await this.#store.flatten(id);
    return await this.#store.pinnedChain(id);
  }
}
