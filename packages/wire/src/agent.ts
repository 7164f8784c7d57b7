/**
 * The conversation between host and guest agent, version 1: one byte stream, and on it sessions that survive its breaks.
 *
 * ```text
 *   host                                                   guest
 *     | -- SYNC {magic, version, nonce, session} ------->   |  any time, also amid a frame of somebody else
 *     | <- SYNC_REPLY {magic, version, resumed, nonce, ..}  |  host discards all before the reply to its own nonce
 *     | <- RESUMED {what the guest holds of the session} -- |
 *     | -- REQ id (verb, fields) ----------------------->   |
 *     | <------------------------------ RES id (status) --- |
 *     | <- DATA id.1 offset bytes ------------------------- |  while the window is open
 *     | -- ACK  id.1 received, limit -------------------->  |
 *     | -- DATA id.0 offset bytes ----------------------->  |  (stdin, upload, dial)
 *     | <- ACK  id.0 received, limit ---------------------- |
 *     | <- EOF  id.1 final offset ------------------------- |
 *     | <- DONE id (how it ended) ------------------------- |
 *     | -- FIN  id -------------------------------------->  |  host has all; guest forgets the request
 * ```
 *
 * SYNC and SYNC_REPLY are raw, 64 bytes, not framed. Everything else is frames: a header of 16 bytes, then the payload. Numbers are little endian.
 *
 * ```text
 *   SYNC        magic[16] version:u16 flags:u16 zero:u32 nonce[16] session[16] zero:u64
 *   SYNC_REPLY  magic[16] version:u16 flags:u16 zero:u32 nonce[16] session[16] bootCounter:u64     flags bit 0: session resumed
 *   header      'f' 'k' type:u8 sub:u8 id:u32 length:u32 zero:u32                                   length of the payload
 *   REQ         sub bit 0: more fragments follow. Payloads of the fragments joined: verb:u16 zero:u16, then fields.
 *               Only one request is in fragments at a time.
 *   RES         status:u16 (0, or an error code) errno:u16 zero:u32, then fields; at most 4096 bytes. Field `message` with an error.
 *   DATA        offset:u64, then 1 to 16376 bytes.      sub: channel 0, 1 or 2
 *   ACK         received:u64 limit:u64                   bytes below `received` may be forgotten; bytes below `limit` may be sent
 *   EOF         final offset:u64
 *   GAP         from:u64 to:u64                          bytes that nobody kept; the channel goes on at `to`
 *   RESET       (empty) host -> guest: stop working on this request; the guest answers DONE (status cancelled) unless it had ended
 *   DONE        status:u16 errno:u16 zero:u32, then fields. After the last byte of every channel was sent (not acknowledged).
 *               Sent once for every request that has channels, after its EOFs; none for a request without channels, or one whose RES is an error.
 *   FIN         (empty) host -> guest: RES and DONE and all data have arrived. The slot is free.
 *   RESUMED     highest:u32 count:u32, then per live request: id:u32 state:u32 received0:u64 (bytes of channel 0 taken)
 *               id 0 in the header. `highest`: the largest request id ever begun in this session.
 *   PING, PONG  8 bytes, echoed. id 0.
 *   field       tag:u16 zero:u16 length:u32, then bytes, not padded. Unknown tags are an error. u64 values are 8 bytes.
 * ```
 *
 * Rules. Request ids are chosen by the host, rise by one from 1 in a session, and are never executed twice. After RESUMED the host sends again each
 * request above `highest` and each whose state is `receiving`, and for each other live request the unacknowledged data of channel 0, plus an ACK of channels
 * 1 and 2 with what it has received; the guest continues those channels from there and sends RES and DONE of answered ones again. A request
 * that is in nobody's table any more is over.
 * A channel's first limit is {@link INITIAL_WINDOW} in both directions. Limits never shrink.
 * Neither side ever sends the 16 bytes of SYNC's magic by other means: a sender that finds them in a payload splits DATA or REQ amid them. So a
 * receiver may take them at any place for the start of a conversation.
 * SYNC of another session ends the one before: its files and dials are closed, its processes go on without a reader that they wait for.
 */

export const AGENT_PROTOCOL_VERSION = 1;

/** Starts SYNC. Random once, fixed for ever. */
export const SYNC_MAGIC_HEX = 'f0d4c6a1e97b4d2c8a5e13b7905ffe21';
/** Starts SYNC_REPLY. */
export const SYNC_REPLY_MAGIC_HEX = '0fb39d5e41c84a7ab6d27ef80c69a3d5';
/** Bytes of SYNC and of SYNC_REPLY. */
export const SYNC_SIZE = 64;

export const FRAME_HEADER_SIZE = 16;
/** Largest payload of one frame, bytes. */
export const MAX_FRAME_PAYLOAD = 16384;
/** Largest request, all fragments joined, bytes: Linux takes 2 MiB of arguments and environment at most by default here. */
export const MAX_REQUEST_BYTES = 1024 * 1024;
/** Largest RES or DONE payload, bytes. */
export const MAX_RESPONSE_BYTES = 4096;
/** First limit of every channel, bytes. */
export const INITIAL_WINDOW = 256 * 1024;
/** Requests alive at a time; one more is answered with error `busy`. */
export const MAX_REQUESTS = 256;
/** Output ring of a process, bytes: half for stdout, half for stderr; all of it for a pty. */
export const PROCESS_RING_BYTES = 1024 * 1024;

export const frameTypes = {
  REQ: 1,
  RES: 2,
  DATA: 3,
  ACK: 4,
  EOF: 5,
  GAP: 6,
  RESET: 7,
  DONE: 8,
  FIN: 9,
  RESUMED: 10,
  PING: 11,
  PONG: 12,
} as const;

/** States of a request in RESUMED. */
export const requestStates = { RECEIVING: 1, RUNNING: 2, ANSWERED: 3, DONE: 4 } as const;

/** What each verb takes (fields), answers (RES fields), and which channels it has. `*` may repeat; `?` optional. */
export const verbs = {
  /** generation, entropy, wall_clock, hostname, machine_id, env*, metadata, thaw -> protocol, monotonic, took, hook* ; none */
  HELLO: 1,
  /** (arg+ | shell), env*, cwd?, user?, rows? cols?, stdin?, timeout?, role?, label? -> handle, pid ; 0 stdin, 1 stdout, 2 stderr ; DONE: outcome... */
  SPAWN: 2,
  /** handle, from?, lossless?, stdin? -> handle, pid, pty ; as SPAWN */
  ATTACH: 3,
  /** -> ; 1: one record per process, each a list of fields preceded by u32 length. DONE */
  PS: 4,
  /** handle, signal, all?, cancel? -> */
  SIGNAL: 5,
  /** handle, rows, cols -> */
  RESIZE: 6,
  /** handle -> */
  RELEASE: 7,
  /** path, offset?, length? -> info ; 1: content. DONE */
  READ: 8,
  /** path, mode?, uid?, gid?, mkdirs? -> (empty) ; 0: content, its EOF commits. DONE: info */
  WRITE: 9,
  /** path, follow? -> info */
  STAT: 10,
  /** path -> ; 1: per entry u32 length, then fields name, info, target?. DONE */
  LIST: 11,
  /** path, parents?, mode? -> */
  MKDIR: 12,
  /** path, path2, replace? -> */
  RENAME: 13,
  /** path, recursive?, force? -> */
  REMOVE: 14,
  /** path (what it points to), path2 (the link) -> */
  SYMLINK: 15,
  /** path, mode?, uid?, gid?, mtime? -> */
  SETATTR: 16,
  /** path, recursive? -> ; 1: per event u32 length, then fields event, path?, directory, cookie. DONE when the host resets it or the path is gone */
  WATCH: 17,
  /** port -> ; 0 and 1: the connection. DONE */
  DIAL: 18,
  /** -> ; 1: one record, no length prefix: metrics fields. DONE */
  METRICS: 19,
  /** wall_clock -> */
  SET_TIME: 20,
  /** entropy -> */
  ADD_ENTROPY: 21,
  /** hostname -> */
  SET_HOSTNAME: 22,
  /** thaw (bits of what to freeze) -> */
  FREEZE: 23,
  /** thaw (bits of what to thaw) -> */
  THAW: 24,
  /** -> */
  SYNC_DISKS: 25,
  /** -> (answered just before the end) */
  POWEROFF: 26,
} as const;

/** Fields. Sizes: u8 1, u32 4, u64 8 bytes; others are byte strings. */
export const fields = {
  message: 1, // text of an error
  generation: 2, // 16 bytes
  entropy: 3, // 32 to 512 bytes
  wall_clock: 4, // u64, ns since 1970
  hostname: 5,
  machine_id: 6, // 32 hex digits
  env: 7, // NAME=value
  metadata: 8, // JSON
  thaw: 9, // u32, bit 0 interpreters, bit 1 user
  protocol: 10, // u32
  monotonic: 11, // u64 ns
  took: 12, // u64 ns
  hook: 13, // outcome:u32 (0 ok, 1 failed, 2 timeout) code:u32, then name
  arg: 14,
  shell: 15,
  cwd: 16,
  user: 17,
  rows: 18, // u32
  cols: 19, // u32
  stdin: 20, // u32, 1: pipe
  timeout: 21, // u32, ms
  role: 22, // u32, 0 user, 1 interpreter
  label: 23,
  handle: 24, // u32
  pid: 25, // u32
  pty: 26, // u32
  from: 27, // u32, 0 kept, 1 now
  lossless: 28, // u32
  signal: 29, // u32
  all: 30, // u32
  cancel: 31, // u32
  path: 32,
  path2: 33,
  offset: 34, // u64
  length: 35, // u64
  mode: 36, // u32
  uid: 37, // u32
  gid: 38, // u32
  mkdirs: 39, // u32
  follow: 40, // u32
  parents: 41, // u32
  replace: 42, // u32
  recursive: 43, // u32
  force: 44, // u32
  mtime: 45, // u64 ns
  info: 46, // type:u32 mode:u32 uid:u32 gid:u32 size:u64 mtime_ns:u64 ino:u64 nlink:u64  (48 bytes; type is S_IFMT >> 12)
  target: 47,
  name: 48,
  event: 49, // u32, see watchEvents
  directory: 50, // u32
  cookie: 51, // u32
  port: 52, // u32
  outcome: 53, // kind:u32 (see outcomeKinds) value:u32 (code or signal) core:u32 held_open:u32
  usage: 54, // wall_ns:u64 user_us:u64 system_us:u64 max_rss_kib:u64 stdout_bytes:u64 stderr_bytes:u64
  state: 55, // u32, 0 running, 1 exited
  age: 56, // u64 ms
  metrics: 57, // 23 x u64 in the order of metricsOrder
  language: 58,
} as const;

/** The u64 values of field `metrics`. Loads are times 1000; `userLimit` 0: none. */
export const metricsOrder = [
  'uptimeNs',
  'wallClockNs',
  'cpus',
  'userUs',
  'systemUs',
  'idleUs',
  'iowaitUs',
  'stealUs',
  'load1',
  'load5',
  'load15',
  'memTotal',
  'memFree',
  'memAvailable',
  'memCached',
  'userLimit',
  'userUsed',
  'diskTotal',
  'diskFree',
  'diskAvailable',
  'processes',
  'oomKills',
  'zero',
] as const;

export const outcomeKinds = { exited: 0, signaled: 1, timeout: 2, oom: 3, cancelled: 4 } as const;

export const watchEvents = {
  created: 1,
  modified: 2,
  removed: 3,
  attributes: 4,
  moved_from: 5,
  moved_to: 6,
  overflow: 7,
  gone: 8,
} as const;

/** Status of RES and DONE. 0 is success. Names are those of AgentErrorCode. */
export const statusCodes = {
  ok: 0,
  not_found: 1,
  permission: 2,
  not_executable: 3,
  not_a_directory: 4,
  is_a_directory: 5,
  exists: 6,
  not_empty: 7,
  no_space: 8,
  read_only: 9,
  too_large: 10,
  too_long: 11,
  busy: 12,
  invalid: 13,
  unsupported: 14,
  no_such_user: 15,
  no_such_process: 16,
  refused: 17,
  loop: 18,
  timeout: 19,
  no_memory: 20,
  io: 21,
  closed: 22,
  cancelled: 23,
} as const;
