/** Of a thing that the host has so much of: what is reserved for what is being started, and does not show as taken yet. */
export class Held {
  #amount = 0;

  get amount(): number {
    return this.#amount;
  }

  /** Reserves it. Dispose when it shows as taken, or is not needed any more; more than once changes nothing. */
  hold(amount: number): Disposable {
    this.#amount += amount;
    let held = amount;
    return {
      [Symbol.dispose]: () => {
        this.#amount -= held;
        held = 0;
      },
    };
  }
}
