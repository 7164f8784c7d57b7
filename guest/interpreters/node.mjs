/**
 * Warm Node: evaluates code that arrives as JSON lines, in the one global scope of this process. Started by node.sh, which
 * says what the descriptors are. The lines are those of python.py.
 *
 * Two threads: this one runs user code; the other (node-channel.mjs) holds the conversation and reads what is written to
 * descriptors 1 and 2, so that output goes out while the code computes. SIGINT interrupts synchronous code through V8 and
 * waiting code by giving up its promise; what it waits for goes on.
 */
import { readFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { inspect } from 'node:util';
import vm from 'node:vm';
import { Worker } from 'node:worker_threads';

const MAX_VALUE = 10 * 1024 * 1024;
const GENERATION_FILE = '/run/forkd/generation';
const REAL_STDERR = 7;
const INTERRUPTED = 'ERR_SCRIPT_EXECUTION_INTERRUPTED';

class SystemExit extends Error {
  name = 'SystemExit';
}

let generation;
let count = 0;
let giveUp = null;

if (process.env.FORKD_CHANNEL !== '3') {
  console.error('node.mjs: start it with node.sh, which prepares its descriptors');
  process.exit(2);
}
delete process.env.FORKD_CHANNEL;
// Nobody reads descriptor 2 before the other thread runs.
const failed = (error) => {
  writeSync(REAL_STDERR, `node.mjs: ${error?.stack ?? error}\n`);
  process.reallyExit(1);
};
process.on('uncaughtException', failed);
const { installRandom, renewRandom } = await import('./node-random.mjs');
installRandom();
const emitWarning = process.emitWarning.bind(process);
process.emitWarning = (warning, ...rest) => {
  // Ours, not the user's: how import() is served.
  if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) emitWarning(warning, ...rest);
};
globalThis.require = createRequire(`${process.cwd()}/`);
const given = process.argv.slice(2);
process.argv = [process.argv[0]];
process.on('SIGINT', () => giveUp?.());
// What runs on after its evaluation must not end the interpreter.
process.off('uncaughtException', failed);
process.on('uncaughtException', (error) => console.error(error));
process.on('unhandledRejection', (error) => console.error(error));
const exit = process.exit.bind(process);
process.exit = (code = process.exitCode ?? 0) => {
  throw new SystemExit(String(code));
};

const initial = readArguments();
const worker = new Worker(new URL('./node-channel.mjs', import.meta.url), { stdout: false, stderr: false });
worker.on('message', (message) => void handle(message));
worker.on('exit', (code) => exit(code));
if (initial !== null) {
  const { error } = await run(initial.code, initial.name, 0);
  if (error !== null) {
    process.stderr.write(error.traceback);
    worker.postMessage({ type: 'exit', code: 1 });
  } else worker.postMessage({ type: 'ready' });
} else worker.postMessage({ type: 'ready' });

function readArguments() {
  if (given.length === 0) return null;
  if (given.length !== 2 || given[0] !== '--init') {
    console.error('usage: node.sh [--init FILE|CODE]');
    exit(2);
  }
  try {
    return { code: readFileSync(given[1], 'utf8'), name: given[1] };
  } catch {
    return { code: given[1], name: '<init>' };
  }
}

async function handle(message) {
  let answer;
  try {
    if (typeof message.code !== 'string') throw new TypeError('an eval needs its code as a string');
    renew(message.generation, message.env ?? {});
    const most = Number.isInteger(message.max_value) ? message.max_value : MAX_VALUE;
    answer = await run(message.code, `<eval ${++count}>`, most);
  } catch (error) {
    answer = { value: null, truncated: false, error: describe(error) };
  }
  worker.postMessage({ type: 'result', id: message.id, ...answer });
}

function renew(told, env) {
  let now = told;
  // Environment that comes with a generation belongs to it: told again, it must not undo what code has set since.
  if (told === undefined || told !== generation)
    for (const [name, value] of Object.entries(env)) process.env[name] = String(value);
  if (now === undefined) {
    try {
      now = readFileSync(GENERATION_FILE, 'utf8').trim();
    } catch {
      return;
    }
  }
  if (now === generation) return;
  generation = now;
  renewRandom();
}

async function run(code, name, most) {
  try {
    const interrupted = new Promise((_, reject) => {
      giveUp = () => reject(Object.assign(new Error('interrupted'), { code: INTERRUPTED }));
    });
    interrupted.catch(() => {});
    const value = await Promise.race([evaluate(code, name), interrupted]);
    if (value === undefined) return { value: null, truncated: false, error: null };
    const text = inspect(value, { depth: 4, maxStringLength: most });
    return { value: text.slice(0, most), truncated: text.length > most, error: null };
  } catch (error) {
    return { value: null, truncated: false, error: describe(error) };
  } finally {
    giveUp = null;
  }
}

/** The value of the last expression; of code that awaits, once it is done. */
async function evaluate(code, name) {
  const script = compile(code, name);
  if (script !== null) return { value: execute(script) }.value;
  // Such a promise must not be awaited by accident above: only code with `await` gets here.
  return await execute(compileAsync(code, name));
}

function execute(script) {
  return script.runInThisContext({ breakOnSigint: true, displayErrors: false });
}

function compile(code, name) {
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
    try {
      return script(`(${code}\n)`, name);
    } catch {
      // a block after all
    }
  }
  try {
    return script(code, name);
  } catch (error) {
    if (error instanceof SyntaxError && /\bawait\b/.test(code)) return null;
    throw error;
  }
}

/**
 * `await` at top level, without a parser: declarations that begin a line stay global, and the last line is the value where it
 * is an expression.
 */
function compileAsync(code, name) {
  try {
    return script(`(async () => (${code}\n))()`, name);
  } catch {
    // statements
  }
  const names = [];
  let body = code.replace(/^(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=/gm, (_, variable) => {
    names.push(variable);
    return `${variable} =`;
  });
  const functions = [...body.matchAll(/^(?:async\s+)?function\s*\*?\s*([A-Za-z_$][\w$]*)/gm)].map(
    (m) => m[1],
  );
  const share = functions.map((f) => `globalThis.${f} = ${f};`).join('');
  for (const variable of names) execute(script(`var ${variable}`, name));
  const last = body.match(/^(?=[^\s}\])])(.*?);?\s*$(?![\s\S]*^[^\s])/m);
  if (last) {
    const asValue = `${body.slice(0, last.index)}return (${last[1]}\n);`;
    try {
      return script(`(async () => {${share}${asValue}\n})()`, name);
    } catch {
      // the last line is no expression
    }
  }
  body = `(async () => {${share}${body}\n})()`;
  return script(body, name);
}

function script(code, name) {
  const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((what) => import(what));
  return new vm.Script(code, { filename: name, importModuleDynamically });
}

function describe(error) {
  if (error?.code === INTERRUPTED)
    return {
      type: 'KeyboardInterrupt',
      message: 'interrupted',
      traceback: 'KeyboardInterrupt: interrupted\n',
    };
  try {
    if (!(error instanceof Error) && typeof error?.stack !== 'string') {
      const text = inspect(error).slice(0, 65536);
      return { type: 'Error', message: text, traceback: `Uncaught ${text}\n` };
    }
    const lines = String(error.stack).split('\n');
    // From here on the stack is the interpreter's own.
    const own = lines.findIndex((line) => /^\s+at .*(?:\(node:vm:|node\.mjs:)/.test(line));
    const traceback = `${(own < 0 ? lines : lines.slice(0, own)).join('\n')}\n`.slice(0, 262144);
    return { type: String(error.name), message: String(error.message).slice(0, 65536), traceback };
  } catch {
    return { type: 'Error', message: 'an error that cannot be shown', traceback: '' };
  }
}
