import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type, { type Static } from 'typebox';
import Schema from 'typebox/schema';
import { EngineError } from '../errors.js';
import type { RamRange } from '../shim/index.js';

/** What a sandbox's directory says of it, so that it can be adopted whatever the registry knows. */
const SandboxFile = Type.Object(
  {
    id: Type.String({ pattern: '^sb-[0-9a-hjkmnp-tv-z]{16}$' }),
    snapshotId: Type.String({ pattern: '^sn-[0-9a-hjkmnp-tv-z]{16}$' }),
    generation: Type.String({ pattern: '^[0-9a-f]{32}$' }),
    hostname: Type.String(),
    /** What its fork has set for every process, for interpreters that run already. May hold secrets: the file is the daemon's alone. */
    env: Type.Record(Type.String(), Type.String()),
    /** Where guest RAM lies in the VMM; addresses as decimal text, since they do not fit a number. */
    ram: Type.Array(
      Type.Object(
        {
          guestOffset: Type.Integer({ minimum: 0 }),
          length: Type.Integer({ minimum: 1 }),
          address: Type.String({ pattern: '^[0-9]{1,20}$' }),
        },
        { additionalProperties: false },
      ),
    ),
  },
  { additionalProperties: false },
);
export type SandboxFile = Static<typeof SandboxFile>;

/** A range as the file has it. */
export function storedRange(range: RamRange): SandboxFile['ram'][number] {
  return {
    guestOffset: Number(range.guestOffset),
    length: Number(range.length),
    address: String(range.address),
  };
}

/** A range of the file as the shim takes it. */
export function ramRange(stored: SandboxFile['ram'][number]): RamRange {
  return {
    guestOffset: BigInt(stored.guestOffset),
    length: BigInt(stored.length),
    address: BigInt(stored.address),
  };
}

const check = Schema.Compile(SandboxFile);
const NAME = 'sandbox.json';

export async function writeSandboxFile(dir: string, facts: SandboxFile): Promise<void> {
  const path = join(dir, NAME);
  await writeFile(`${path}.new`, JSON.stringify(facts), { mode: 0o600, flag: 'wx' });
  await rename(`${path}.new`, path);
}

/** @throws EngineError sandbox_not_found when the directory or the file is not there, engine_error when it is damaged */
export async function readSandboxFile(dir: string, id: string): Promise<SandboxFile> {
  const text = await readFile(join(dir, NAME), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
    throw new EngineError('sandbox_not_found', `there is no sandbox ${id}: ${dir} has no ${NAME}`);
  });
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    // Told below, with the file's name.
  }
  if (!check.Check(value) || value.id !== id)
    throw new EngineError('engine_error', `${join(dir, NAME)} is damaged`, {
      remedy: `Remove the sandbox: forkd rm ${id}`,
    });
  return value;
}
