/** Ends a daemon that has had nothing to do for a while. */

export interface IdleOptions {
  /** Seconds; 0 never. */
  secs: number;
  /** Whether something lives that needs the daemon, other than requests. */
  busy: () => boolean;
  onIdle: () => void;
}

/** Longest time that a timer of Node can wait, in milliseconds. */
const maxTimerMs = 2 ** 31 - 1;

export class IdleTimer {
  readonly #options: IdleOptions;
  #timer: NodeJS.Timeout | null = null;
  #active = 0;
  #closed = false;

  constructor(options: IdleOptions) {
    this.#options = options;
  }

  /** Number of requests that are being answered. */
  get active(): number {
    return this.#active;
  }

  /** A request begins; the function that is returned ends it. */
  enter(): () => void {
    this.#active += 1;
    this.touch();
    let left = false;
    return () => {
      if (left) return;
      left = true;
      this.#active -= 1;
      this.touch();
    };
  }

  /** Something has changed: the time of idleness begins anew, if it is idleness. */
  touch(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const { secs, busy, onIdle } = this.#options;
    if (this.#closed || secs === 0 || this.#active > 0 || busy()) return;
    this.#timer = setTimeout(onIdle, Math.min(secs * 1000, maxTimerMs)).unref();
  }

  close(): void {
    this.#closed = true;
    this.touch();
  }
}
