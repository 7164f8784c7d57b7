/** The registry's tables, as a list of migrations. One that was released is never edited: append. */

/** Each entry takes the registry from the version of its index to the next. */
export const migrations: readonly string[] = [
  `
  CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    template TEXT,
    status TEXT NOT NULL CHECK (status IN ('writing', 'ready', 'failed')),
    created_at INTEGER NOT NULL            -- milliseconds since 1970
  ) STRICT;
  CREATE TABLE tags (
    tag TEXT PRIMARY KEY,
    snapshot_id TEXT NOT NULL,
    moved_at INTEGER NOT NULL
  ) STRICT;
  CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    snapshot_id TEXT NOT NULL,
    snapshot_ref TEXT NOT NULL,            -- the tag or id that was asked for
    state TEXT NOT NULL CHECK (state IN ('forking', 'running', 'stopping', 'exited', 'unreachable')),
    created_at INTEGER NOT NULL,
    hostname TEXT NOT NULL,
    generation TEXT,
    pid INTEGER,
    metadata TEXT NOT NULL,                -- JSON
    machine TEXT NOT NULL,                 -- JSON: engine, accelerator, memory, vcpus; {} while forking
    exit TEXT                              -- JSON of ExitInfo, in state exited
  ) STRICT;
  CREATE INDEX sandboxes_by_snapshot ON sandboxes (snapshot_id);
  `,
  `
  -- Of a snapshot that is branched off a running sandbox: what to finish, or to tell, when the daemon ended meanwhile.
  ALTER TABLE snapshots ADD COLUMN tag TEXT;         -- tag that it gets when it is ready
  ALTER TABLE snapshots ADD COLUMN sandbox TEXT;     -- its source
  ALTER TABLE snapshots ADD COLUMN problem TEXT;     -- why it failed
  -- Ids of sandboxes whose place another one has taken.
  CREATE TABLE aliases (
    id TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL
  ) STRICT;
  `,
];
