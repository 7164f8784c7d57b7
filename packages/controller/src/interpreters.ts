/** Connections to the warm interpreters of one machine, kept between calls. */
import { AgentError, type Interpreter, type Machine } from '@forkd/engine';

/** Failures after which the interpreter has to be found anew. */
const fatal = new Set([
  'closed',
  'unreachable',
  'session_lost',
  'protocol',
  'interpreter_died',
  'no_such_process',
]);

export interface Interpreters {
  /** Runs `use` with an interpreter; default the template's first. */
  with<T>(
    name: string | undefined,
    signal: AbortSignal,
    use: (interpreter: Interpreter) => Promise<T>,
  ): Promise<T>;
  /** Lets go of them; they run on. */
  close(): Promise<void>;
}

export function openInterpreters(machine: Machine): Interpreters {
  const open = new Map<string, Promise<Interpreter>>();
  return {
    async with(name, signal, use) {
      const key = name ?? '';
      let found = open.get(key);
      if (found === undefined) {
        found = machine.interpreter(name, signal);
        open.set(key, found);
      }
      try {
        return await use(await found);
      } catch (error) {
        const lost = !(error instanceof AgentError) || fatal.has(error.code);
        if (lost && open.get(key) === found) {
          open.delete(key);
          found.then((interpreter) => interpreter.close()).catch(() => undefined);
        }
        throw error;
      }
    },
    async close() {
      const all = [...open.values()];
      open.clear();
      await Promise.allSettled(all.map(async (interpreter) => (await interpreter).close()));
    },
  };
}
