/**
 * What the daemon remembers: tags, snapshots and the journal of sandboxes. SQLite with a write-ahead log.
 *
 * Changes of sandboxes are not synced to disk: after a crash of the host no sandbox lives that they could be about. Moves of tags are.
 */
import type { ExitInfo, SandboxState } from '@forkd/api';
import Database from 'libsql';
import { ApiError } from '../errors.js';
import { migrations } from './schema.js';

/** The machine of a sandbox, as far as a listing shows it. */
export interface MachineFacts {
  engine: string;
  accelerator: string;
  memory_mib: number;
  vcpus: number;
}

export interface SandboxRow {
  id: string;
  snapshotId: string;
  snapshotRef: string;
  state: SandboxState;
  /** Milliseconds since 1970. */
  createdAt: number;
  hostname: string;
  generation: string | null;
  pid: number | null;
  metadata: Record<string, string>;
  machine: MachineFacts | null;
  exit: ExitInfo | null;
}

/** A snapshot that is being branched off a sandbox, or that could not be. */
export interface DraftRow {
  id: string;
  template: string;
  status: 'writing' | 'failed';
  /** Milliseconds since 1970. */
  createdAt: number;
  tag: string | null;
  sandbox: string;
  /** Why it failed. */
  problem: string | null;
}

/** How long changes of the log wait to be carried into the database file, which syncs: not while requests wait for it. */
const checkpointMs = 30_000;
/** Time until what could not be written is tried again. */
const retryMs = 2_000;

export class Registry {
  readonly #db: Database.Database;
  readonly #put: Database.Statement;
  readonly #delete: Database.Statement;
  /** Latest state of the rows that are to be written in one transaction. */
  readonly #dirty = new Map<string, SandboxRow | null>();
  readonly #path: string;
  readonly #onError: (error: unknown) => void;
  #flushing: NodeJS.Immediate | null = null;
  #retry: NodeJS.Timeout | null = null;
  #checkpoint: NodeJS.Timeout | null = null;
  #open = true;

  /**
   * @param onError Told of changes that could not be written yet, for example as the disk is full; they are tried again.
   * @throws ApiError home_unusable when the file is not a registry, or of a newer version.
   */
  constructor(path: string, onError: (error: unknown) => void = () => undefined) {
    this.#onError = onError;
    this.#path = path;
    try {
      this.#db = new Database(path, { timeout: 5000 });
      // The index of the log is in this process then, not in a file that is mapped: on a full disk the kernel ends by SIGBUS who touches a page
      // of such a file for which there is no room.
      this.#db.pragma('locking_mode = EXCLUSIVE');
      this.#useLog();
      this.#db.pragma('synchronous = NORMAL');
      this.#db.pragma('wal_autocheckpoint = 0');
    } catch (cause) {
      throw unusable(path, cause instanceof Error ? cause.message : String(cause), cause);
    }
    this.#migrate(path);
    this.#put = this.#db.prepare(
      `INSERT OR REPLACE INTO sandboxes (id, snapshot_id, snapshot_ref, state, created_at, hostname, generation, pid, metadata, machine, exit)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#delete = this.#db.prepare('DELETE FROM sandboxes WHERE id = ?');
  }

  /**
   * Writes rows before it returns: the journal of what is about to begin.
   *
   * @throws ApiError insufficient_disk, home_unusable; the rows are forgotten then, as what they announce must not begin.
   */
  journal(rows: readonly SandboxRow[]): void {
    for (const row of rows) this.#dirty.set(row.id, row);
    try {
      this.#write();
    } catch (error) {
      for (const row of rows) this.#dirty.delete(row.id);
      throw this.#failure(error);
    }
  }

  /** Writes a row soon, together with others. */
  record(row: SandboxRow): void {
    this.#dirty.set(row.id, row);
    this.#flushing ??= setImmediate(() => this.flush());
  }

  /** Deletes a row soon. */
  forget(id: string): void {
    this.#dirty.set(id, null);
    this.#flushing ??= setImmediate(() => this.flush());
  }

  /** Writes what waits. What cannot be written is tried again later: what it tells of has happened. */
  flush(): void {
    try {
      this.#write();
    } catch (error) {
      this.#onError(this.#failure(error));
      this.#retry ??= setTimeout(() => {
        this.#retry = null;
        this.flush();
      }, retryMs).unref();
    }
  }

  /** Writes what waits, in one transaction. */
  #write(): void {
    if (this.#flushing !== null) clearImmediate(this.#flushing);
    this.#flushing = null;
    if (this.#dirty.size === 0 || !this.#open) return;
    const rows = [...this.#dirty];
    this.#transaction(() => {
      for (const [id, row] of rows) {
        if (row === null) this.#delete.run(id);
        else this.#put.run(...columns(row));
      }
    });
    this.#dirty.clear();
    this.#checkpoint ??= setTimeout(() => {
      this.#checkpoint = null;
      this.#tryCheckpoint();
    }, checkpointMs).unref();
  }

  sandboxes(): SandboxRow[] {
    this.flush();
    const rows = this.#db.prepare('SELECT * FROM sandboxes ORDER BY created_at, id').all() as RawRow[];
    return rows.map(rowOf);
  }

  /** All tags and where they point. */
  tags(): Map<string, string> {
    const rows = this.#db.prepare('SELECT tag, snapshot_id FROM tags').all() as {
      tag: string;
      snapshot_id: string;
    }[];
    return new Map(rows.map((row) => [row.tag, row.snapshot_id]));
  }

  /** Makes a snapshot known and points a tag at it, at once and durably. */
  moveTag(tag: string, snapshot: { id: string; template: string; createdAt: number }): void {
    this.#durably(() => {
      this.#db
        .prepare(
          `INSERT OR REPLACE INTO snapshots (id, template, status, created_at) VALUES (?, ?, 'ready', ?)`,
        )
        .run(snapshot.id, snapshot.template, snapshot.createdAt);
      this.#db
        .prepare('INSERT OR REPLACE INTO tags (tag, snapshot_id, moved_at) VALUES (?, ?, ?)')
        .run(tag, snapshot.id, Date.now());
    });
  }

  /**
   * Writes down that a snapshot is about to be written, or that it could not be; before it returns, not durably: after a crash of the
   * host nothing is left of it.
   */
  journalDraft(row: DraftRow): void {
    this.flush();
    try {
      this.#db
        .prepare(
          `INSERT OR REPLACE INTO snapshots (id, template, status, created_at, tag, sandbox, problem) VALUES (?, ?, ?, ?, ?, ?, ?)`,
        )
        .run(row.id, row.template, row.status, row.createdAt, row.tag, row.sandbox, row.problem);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** What was being written when the registry was last in use, and what had failed before. */
  drafts(): DraftRow[] {
    return this.#db
      .prepare(
        `SELECT id, template, status, created_at AS createdAt, tag, sandbox, problem FROM snapshots
         WHERE status <> 'ready' AND sandbox IS NOT NULL ORDER BY created_at`,
      )
      .all() as DraftRow[];
  }

  /** Makes a snapshot without tag known. Not durably: it is found on disk too. */
  completeDraft(id: string): void {
    try {
      this.#db.prepare(`UPDATE snapshots SET status = 'ready', tag = NULL WHERE id = ?`).run(id);
    } catch (error) {
      this.#onError(this.#failure(error));
    }
  }

  /** Ids of sandboxes whose place another one has taken, and which. */
  aliases(): Map<string, string> {
    const rows = this.#db.prepare('SELECT id, sandbox FROM aliases').all() as {
      id: string;
      sandbox: string;
    }[];
    return new Map(rows.map((row) => [row.id, row.sandbox]));
  }

  /** From now on `id` means another sandbox; durably. */
  setAlias(id: string, sandbox: string): void {
    this.#durably(() => {
      this.#db.prepare('UPDATE aliases SET sandbox = ? WHERE sandbox = ?').run(sandbox, id);
      this.#db.prepare('INSERT OR REPLACE INTO aliases (id, sandbox) VALUES (?, ?)').run(id, sandbox);
    });
  }

  /** Forgets all ids that mean a sandbox which is gone. */
  dropAliases(sandbox: string): void {
    try {
      this.#db.prepare('DELETE FROM aliases WHERE sandbox = ?').run(sandbox);
    } catch (error) {
      this.#onError(this.#failure(error));
    }
  }

  /** Forgets a snapshot and its tags, durably. */
  dropSnapshot(id: string): void {
    this.#durably(() => {
      this.#db.prepare('DELETE FROM tags WHERE snapshot_id = ?').run(id);
      this.#db.prepare('DELETE FROM snapshots WHERE id = ?').run(id);
    });
  }

  close(): void {
    if (!this.#open) return;
    this.flush();
    this.#open = false;
    if (this.#checkpoint !== null) clearTimeout(this.#checkpoint);
    if (this.#retry !== null) clearTimeout(this.#retry);
    this.#tryToUnlock();
    this.#db.close();
  }

  /** A log, unless there is no room to say so in the file: it is read, and written once there is room, without one as well. */
  #useLog(): void {
    try {
      this.#db.pragma('journal_mode = WAL');
    } catch (error) {
      if (!isFull(error)) throw error;
    }
  }

  /** Carries the log into the file. It is as good in the log, should that fail. */
  #tryCheckpoint(): void {
    try {
      this.#db.pragma('wal_checkpoint(PASSIVE)');
    } catch (error) {
      this.#onError(this.#failure(error));
    }
  }

  /**
   * Carries the log into the file, and lets go of that: closing alone does so only when the statements have been collected. The way out of
   * exclusive locking leads through another kind of journal. Should it fail, the log is as good, and the lock goes with this process.
   */
  #tryToUnlock(): void {
    try {
      this.#db.pragma('journal_mode = DELETE');
      this.#db.pragma('locking_mode = NORMAL');
      this.tags();
    } catch (error) {
      this.#onError(this.#failure(error));
    }
  }

  #failure(cause: unknown): ApiError {
    const values = { path: this.#path, problem: (cause as Error).message };
    return new ApiError(isFull(cause) ? 'insufficient_disk' : 'home_unusable', values, { cause });
  }

  /** All of a change or nothing. On a full disk SQLite rolls back by itself; libsql's own helper then fails at that, and hides why. */
  #transaction(change: () => void): void {
    this.#db.exec('BEGIN');
    try {
      change();
      this.#db.exec('COMMIT');
    } catch (error) {
      if (this.#db.inTransaction) this.#db.exec('ROLLBACK');
      throw error;
    }
  }

  #durably(change: () => void): void {
    this.flush();
    this.#db.pragma('synchronous = FULL');
    try {
      this.#transaction(change);
    } catch (error) {
      throw this.#failure(error);
    } finally {
      this.#db.pragma('synchronous = NORMAL');
    }
  }

  #migrate(path: string): void {
    let version: number;
    try {
      version = (this.#db.prepare('PRAGMA user_version').get() as { user_version: number }).user_version;
    } catch (cause) {
      throw unusable(path, cause instanceof Error ? cause.message : String(cause), cause);
    }
    if (version > migrations.length) {
      throw unusable(
        path,
        `it is of version ${version}, made by a newer forkd; this one knows ${migrations.length}`,
      );
    }
    for (let at = version; at < migrations.length; at++) {
      this.#db.exec(`BEGIN IMMEDIATE; ${migrations[at] ?? ''} PRAGMA user_version = ${at + 1}; COMMIT;`);
    }
  }
}

/** Whether this is SQLite's word for a disk without room. */
function isFull(error: unknown): boolean {
  return (error as { code?: string }).code === 'SQLITE_FULL';
}

function unusable(path: string, problem: string, cause?: unknown): ApiError {
  return new ApiError('home_unusable', { path, problem }, { cause });
}

interface RawRow {
  id: string;
  snapshot_id: string;
  snapshot_ref: string;
  state: string;
  created_at: number;
  hostname: string;
  generation: string | null;
  pid: number | null;
  metadata: string;
  machine: string;
  exit: string | null;
}

function columns(row: SandboxRow): unknown[] {
  return [
    row.id,
    row.snapshotId,
    row.snapshotRef,
    row.state,
    row.createdAt,
    row.hostname,
    row.generation,
    row.pid,
    JSON.stringify(row.metadata),
    JSON.stringify(row.machine ?? {}),
    row.exit === null ? null : JSON.stringify(row.exit),
  ];
}

function rowOf(raw: RawRow): SandboxRow {
  const machine = JSON.parse(raw.machine) as Partial<MachineFacts>;
  return {
    id: raw.id,
    snapshotId: raw.snapshot_id,
    snapshotRef: raw.snapshot_ref,
    state: raw.state as SandboxState,
    createdAt: raw.created_at,
    hostname: raw.hostname,
    generation: raw.generation,
    pid: raw.pid,
    metadata: JSON.parse(raw.metadata) as Record<string, string>,
    machine: machine.engine === undefined ? null : (machine as MachineFacts),
    exit: raw.exit === null ? null : (JSON.parse(raw.exit) as ExitInfo),
  };
}
