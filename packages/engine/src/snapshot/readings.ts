/**
 * Who reads files of snapshots by their paths. A file that a flattening has replaced, or a snapshot that is removed, goes when those that had
 * begun to read before have ended: a fork opens and links files by name.
 */
export class Readings {
  readonly #open = new Set<{ ids: ReadonlySet<string>; ended: Promise<void> }>();

  /** Begins to read files of these snapshots; dispose when they are open. */
  begin(ids: Iterable<string>): Disposable {
    let end!: () => void;
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    const reading = { ids: new Set(ids), ended };
    this.#open.add(reading);
    return {
      [Symbol.dispose]: () => {
        this.#open.delete(reading);
        end();
      },
    };
  }

  /** Waits for those that read files of a snapshot now; who begins later is not waited for. */
  async ended(id: string): Promise<void> {
    const now = [...this.#open].filter(({ ids }) => ids.has(id));
    await Promise.all(now.map(({ ended }) => ended));
  }
}
