/**
 * Builds the C programs into build/native: `node native/build.mjs [PROGRAM...]`, without names all of them.
 *
 *   forkd-agent        the guest's pid 1: static, small, by musl-gcc       (native/agent)
 *   forkd-agent-host   the same with sanitizers, for tests on a socket
 *   forkd-shim         parent of one VMM                                   (native/shim)
 *   forkd-shim-asan    the same with sanitizers
 *   node-openssl.node  add-on of the guest's warm Node                     (native/node)
 *
 * A file is compiled again when its text, a header beside it, the compiler or the flags changed: their hash is kept beside the object.
 */
import { execFile, execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const native = dirname(fileURLToPath(import.meta.url));
const root = dirname(native);
const out = join(root, 'build', 'native');

const common = ['-std=c11', '-Wall', '-Wextra', '-Werror', '-g'];
const sanitizers = [
  '-fsanitize=address,undefined',
  '-fno-sanitize-recover=undefined',
  '-fno-omit-frame-pointer',
];

/** Where a missing compiler comes from. */
const packages = {
  'musl-gcc': 'musl-tools (Debian, Ubuntu), musl-gcc (Fedora) or musl (Arch)',
  gcc: 'gcc and libc6-dev (Debian, Ubuntu), gcc and libasan libubsan (Fedora) or gcc (Arch)',
};

/** @typedef {{folder: string, compiler: 'gcc' | 'musl-gcc', compile: string[], link: string[], skip: RegExp, only?: RegExp, extra?: string[]}} Program */

/** @type {Record<string, Program>} */
export const programs = {
  'forkd-agent': {
    folder: 'agent',
    compiler: 'musl-gcc',
    compile: [...common, '-Os', '-ffunction-sections', '-fdata-sections', '-fno-asynchronous-unwind-tables'],
    link: ['-static', '-s', '-Wl,--gc-sections', '-Wl,--build-id=none'],
    skip: /^(fuzz|test)_/,
  },
  'forkd-agent-host': {
    folder: 'agent',
    compiler: 'gcc',
    compile: [...common, '-O1', ...sanitizers],
    link: [...sanitizers],
    skip: /^(fuzz|test)_/,
  },
  'forkd-shim': {
    folder: 'shim',
    compiler: 'gcc',
    compile: [...common, '-O2'],
    link: [],
    skip: /^(fuzz|test)_/,
  },
  'forkd-shim-asan': {
    folder: 'shim',
    compiler: 'gcc',
    compile: [...common, '-O1', ...sanitizers],
    link: [...sanitizers],
    skip: /^(fuzz|test)_/,
  },
  'node-openssl.node': {
    folder: 'node',
    compiler: 'gcc',
    compile: [...common, '-Os', '-fPIC', '-fvisibility=hidden', '-fno-stack-protector'],
    link: ['-shared', '-nostdlib', '-s', '-Wl,--build-id=none'],
    skip: /^(fuzz|test)_/,
  },
};

/** A failure that is told by its message alone. */
export class BuildError extends Error {}

/** @type {Map<string, string>} */
const versions = new Map();

/** The compiler's version, which is part of every hash. */
function versionOf(compiler, program) {
  let version = versions.get(compiler);
  if (version === undefined) {
    try {
      version = execFileSync(compiler, ['--version'], { encoding: 'utf8' }).split('\n')[0];
    } catch (error) {
      if (error.code !== 'ENOENT') throw error;
      throw new BuildError(
        `${compiler} is not installed, and ${program} is built by it: install the package ${packages[compiler]}`,
      );
    }
    versions.set(compiler, version);
  }
  return version;
}

/** Runs the work, as many at a time as there are processors. */
async function parallel(items, work) {
  const queue = [...items];
  const worker = async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: availableParallelism() }, worker));
}

/** Writes `target` by running the compiler, unless what it is made from is what made it before. Tells whether it ran. */
async function make(target, key, compiler, args) {
  const keyFile = `${target}.key`;
  if (existsSync(target) && existsSync(keyFile) && readFileSync(keyFile, 'utf8') === key) return false;
  // Made beside and renamed: a program that runs keeps its file, and two builds at once do not mix.
  const temporary = `${target}.${process.pid}`;
  rmSync(keyFile, { force: true });
  try {
    await run(compiler, [...args, '-o', temporary], { cwd: native, maxBuffer: 1 << 24 });
    renameSync(temporary, target);
    writeFileSync(keyFile, key);
  } catch (error) {
    rmSync(temporary, { force: true });
    const said = String(error.stderr ?? '').trim();
    throw new BuildError(`${compiler} ${args.join(' ')}\n${said || error.message}`);
  }
  return true;
}

const hash = (...parts) => {
  const h = createHash('sha256');
  for (const part of parts) h.update(part).update('\0');
  return h.digest('hex');
};

/**
 * Builds one program.
 *
 * @param {string} name of the file in build/native
 * @param {Program} program what it is made of: sources that `only` names, without those that `skip` does, and `extra`
 * @returns {Promise<boolean>} whether anything had to be done
 */
export async function build(name, program) {
  const folder = join(native, program.folder);
  const objects = join(out, 'obj', name);
  mkdirSync(objects, { recursive: true });
  const names = readdirSync(folder).sort();
  const sources = names
    .filter((n) => n.endsWith('.c') && !program.skip.test(n) && (program.only?.test(n) ?? true))
    .concat(program.extra ?? []);
  if (sources.length === 0) throw new BuildError(`${folder} has no source of ${name}`);
  const headers = names
    .filter((n) => n.endsWith('.h'))
    .map((n) => `${n}\n${readFileSync(join(folder, n), 'utf8')}`);
  const shared = hash(versionOf(program.compiler, name), program.compile.join(' '), ...headers);

  const keys = [];
  await parallel(sources, async (source) => {
    const path = join(program.folder, source);
    const key = hash(shared, readFileSync(join(native, path), 'utf8'));
    keys.push(`${source} ${key}`);
    // Paths in the binary are relative to native/, so that a build says nothing of where it was made.
    const args = ['-c', path, ...program.compile];
    await make(join(objects, `${basename(source, '.c')}.o`), key, program.compiler, args);
  });
  const target = join(out, name);
  const inputs = sources.map((source) => join(objects, `${basename(source, '.c')}.o`));
  const key = hash(keys.sort().join('\n'), program.link.join(' '));
  const made = await make(target, key, program.compiler, [...inputs, '-pthread', ...program.link]);
  return made;
}

/** Runs `body`; a BuildError ends the process with its message, without a stack. */
export async function told(body) {
  try {
    await body();
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(`native build: ${error.message}`);
    process.exitCode = 1;
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  await told(async () => {
    const wanted = process.argv.slice(2);
    const unknown = wanted.find((name) => !(name in programs));
    if (unknown !== undefined)
      throw new BuildError(`there is no program "${unknown}": choose of ${Object.keys(programs).join(', ')}`);
    for (const name of wanted.length > 0 ? wanted : Object.keys(programs)) {
      const made = await build(name, programs[name]);
      if (made) console.log(`built build/native/${name}`);
    }
  });
}
