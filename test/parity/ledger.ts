/** What is known of a run of the suite in a machine that may crash, over all the times that it was booted. */
import { type Behaviour, keyOf, type SuiteEvent } from './events.js';
import type { Column } from './table.js';

/** What is still to be run. */
export interface Left {
  titles: string[];
  /** Keys of behaviours that have been judged. */
  except: string[];
}

/** A crash of a machine is no verdict on a behaviour; one that runs when it crashes again is not let off twice. */
const CRASHES_OF_ONE = 2;

export class Ledger {
  readonly columns: Column[];
  #chosen: Behaviour[] | undefined;
  #running: { title: string; behaviour: Behaviour; since: number } | undefined;
  readonly #crashes = new Map<string, string[]>();

  constructor(titles: readonly string[]) {
    this.columns = titles.map((title) => ({
      title,
      engine: '',
      version: 'unknown',
      slowness: 1,
      results: [],
    }));
  }

  /** All behaviours of a column; undefined before the suite has told. */
  get chosen(): readonly Behaviour[] | undefined {
    return this.#chosen;
  }

  take(event: SuiteEvent): void {
    if (event.type === 'chosen') {
      this.#chosen = event.behaviours;
      return;
    }
    const column = this.columns.find(({ title }) => title === event.title);
    if (!column) throw new Error(`the suite tells of ${event.title}, which it was not to run`);
    switch (event.type) {
      case 'column':
        column.engine = event.engine;
        column.version = event.version;
        column.slowness = Math.max(column.slowness, event.slowness);
        break;
      case 'begin':
        this.#running = { ...event, since: performance.now() };
        break;
      case 'end':
        this.#running = undefined;
        column.results.push(event.result);
        break;
      case 'trouble':
        this.#running = undefined;
        column.trouble = event.text;
        break;
    }
  }

  /**
   * The machine has crashed.
   *
   * @param how for people
   * @returns the key of the behaviour that ran, undefined where none did
   */
  crashed(how: string): string | undefined {
    const running = this.#running;
    this.#running = undefined;
    if (!running) return undefined;
    const { title, behaviour, since } = running;
    const key = keyOf(title, behaviour);
    const crashes = [...(this.#crashes.get(key) ?? []), how];
    this.#crashes.set(key, crashes);
    if (crashes.length >= CRASHES_OF_ONE)
      this.columns
        .find((column) => column.title === title)!
        .results.push({
          scenario: behaviour,
          state: 'fail',
          ms: performance.now() - since,
          error: `the machine crashed ${crashes.length} times while it ran:\n${crashes.join('\n')}`,
        });
    return key;
  }

  /** Null where all is judged. */
  left(): Left | null {
    const open = this.columns.filter(
      ({ trouble, results }) => trouble === undefined && results.length !== this.#chosen?.length,
    );
    if (open.length === 0) return null;
    return {
      titles: open.map(({ title }) => title),
      except: open.flatMap(({ title, results }) => results.map(({ scenario }) => keyOf(title, scenario))),
    };
  }
}
