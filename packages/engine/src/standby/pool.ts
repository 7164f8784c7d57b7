/** Things of one key that were made ahead of demand, oldest first. */
export class Pool<T extends AsyncDisposable> {
  readonly #ready: { item: T; since: number }[] = [];
  readonly #make: (signal: AbortSignal) => Promise<T>;
  readonly #stop = new AbortController();
  #making: Promise<void> | undefined;
  /** When it was last asked for something, performance.now(). */
  lastUse = performance.now();

  constructor(make: (signal: AbortSignal) => Promise<T>) {
    this.#make = make;
  }

  get ready(): number {
    return this.#ready.length;
  }

  /** The oldest one, now the caller's. */
  take(): T | undefined {
    this.lastUse = performance.now();
    return this.#ready.shift()?.item;
  }

  /** Makes one more. Calls while one is being made join it. */
  fill(): Promise<void> {
    this.#making ??= this.#fillOne().finally(() => {
      this.#making = undefined;
    });
    return this.#making;
  }

  async #fillOne(): Promise<void> {
    if (this.#stop.signal.aborted) return;
    const item = await this.#make(this.#stop.signal);
    if (this.#stop.signal.aborted) await item[Symbol.asyncDispose]();
    else this.#ready.push({ item, since: performance.now() });
  }

  /** Disposes of those that have waited longer than `ms`. */
  async expire(ms: number): Promise<void> {
    const now = performance.now();
    while (this.#ready[0] && now - this.#ready[0].since > ms)
      await this.#ready.shift()!.item[Symbol.asyncDispose]();
  }

  /** Disposes of all, also of one that is being made. It stays empty from then on. */
  async close(): Promise<void> {
    this.#stop.abort(new Error('the pool is closed'));
    await this.#making?.catch(() => {}); // Its failure has been told to whoever filled.
    await Promise.all(this.#ready.splice(0).map(({ item }) => item[Symbol.asyncDispose]()));
  }
}
