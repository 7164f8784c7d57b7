/**
 * The conversation between the daemon and a shim, version 2: requests, their replies, and one event, over a unix stream socket.
 *
 * ```text
 *   daemon                                       shim
 *     | -- START id (how the VMM is started) ---> |   first connection only: descriptor 3 of `forkd-shim --start DIR`
 *     | <------------- START|REPLY id (info) ---- |   the VMM has been executed
 *     |                                           |
 *     | -- HELLO id ----------------------------> |   later connections, through shim.sock
 *     | <------------- HELLO|REPLY id (info) ---- |   followed by EXITED when the VMM had ended before
 *     | -- GRAFT id (ram, files, extents) ------> |
 *     | <----- GRAFT|REPLY id (microseconds) ---- |
 *     | <------------------- EXITED 0 (how) ----- |   once, when the VMM ends
 *     | -- END id ------------------------------> |
 *     | <------------------------ END|REPLY id -- |   the shim ends as soon as its VMM has; then the connection closes
 * ```
 *
 * Every frame is a header of 16 bytes and a payload. Numbers are little endian, `str` is length:u32 and bytes, nothing is padded.
 *
 * ```text
 *   header    'f' 's' version:u8 type:u8 id:u32 length:u32 status:u32      length of the payload; status 0, or an errno in a reply
 *   failure   (status not 0) message:str
 *   info      pid:u32 vmmPid:u32 startTime:u64 vmmStartTime:u64 abilities:u32 ended:u32 reason:str
 *   START     flags:u32 uid:u32 gid:u32 abilities:u32 reason:str argc:u32 sockets:u32, then argc x str, sockets x str   -> info
 *   ADOPT     flags:u32 vmmPid:u32 vmmStartTime:u64 abilities:u32 reason:str sockets:u32, then sockets x str            -> info
 *   HELLO     (empty)                                                                                                   -> info
 *   FIND_RAM  name:str                            -> count:u32, then count x (guestOffset:u64 length:u64 address:u64)
 *   GRAFT     ram:u32 files:u32 extents:u32 timeoutMs:u32, then ram x (guestOffset:u64 length:u64 address:u64),
 *             extents x (kind:u32 file:u32 fileOffset:u64 guestOffset:u64 length:u64), files x (bytes:u64 path:str)
 *                                                 -> microseconds:u32 mapped:u32 (0: injection was not possible, all was copied)
 *   ARM       deadlineMs:u32 lines:u32 greets:u32 socket:str, then lines x str -> (empty). greets 1: the VMM speaks first; 0: it waits for the
 *             first line. Before each further one the VMM is to say something that ends with a newline.
 *   DISARM    (empty)                             -> unsent:u32 (0: the recipe had been sent, or there was none)
 *   KILL      (empty)                             -> (empty); EXITED follows
 *   END       (empty)                             -> (empty)
 *   CAPTURE_PREPARE  live:u32 origin:u32 layer:str, then as GRAFT (extents: what the snapshot's link below shows; files below `origin` are
 *             those that the source was forked from), then id:str since:str, of this capture and of the one that the extents show, each ""
 *             where there is none. live: 2 where memory may be copied before the pause as well, which is late then
 *                                                  -> live:u32 zero:u32 privateBytes:u64 reason:str
 *   CAPTURE_FREEZE   (empty), or deadlineMs:u32 speaks:u32 before:u32 after:u32 socket:str freezeAt:str, then before + after x
 *             (kind:u32 text:str to:str): the pause as steps around the freeze; those after it are taken whatever fails. `command`: text is sent
 *             to the socket. `copy`: the disk `text` of the run directory is copied to `to`, an absolute path. freezeAt is "", or a path: memory
 *             is then frozen where the VMM's main thread enters the open of it, in the course of the last command before the freeze.
 *                                                 -> microseconds:u32 steps:u32, then steps x microseconds:u32, status:u32 answer:str (of the
 *             command that was frozen).              live: the clone exists. Else: the layer is written.
 *   CAPTURE_COPY     (empty)                      -> microseconds:u32 count:u32 bytes:u64 compared:u64 unchanged:u64 (pages), then
 *             count x (guestPage:u32 pages:u32 filePage:u32, all ones: zeros)
 *   CAPTURE_ABORT    (empty)                      -> (empty); no clone and no layer is left
 *   EXITED    kind:u32 value:u32 lastWords:str    value: exit code or signal number
 * ```
 *
 * Replies to CAPTURE_ requests come when they are done, other replies in the order of their requests. A capture belongs to the connection that
 * prepared it and is aborted when that closes. A frame with another version, or a payload over {@link SHIM_MAX_PAYLOAD}, ends the connection.
 */
export const SHIM_PROTOCOL_VERSION = 2;

export const SHIM_HEADER_SIZE = 16;
/** Largest payload, bytes: a graft of 500,000 extents, a layer of 1,300,000. */
export const SHIM_MAX_PAYLOAD = 16 * 1024 * 1024;
/** Set in the type of a reply. */
export const SHIM_REPLY = 0x80;

export const shimFrames = {
  START: 1,
  ADOPT: 2,
  HELLO: 3,
  FIND_RAM: 4,
  GRAFT: 5,
  ARM: 6,
  DISARM: 7,
  KILL: 8,
  END: 9,
  EXITED: 10,
  CAPTURE_PREPARE: 11,
  CAPTURE_FREEZE: 12,
  CAPTURE_COPY: 13,
  CAPTURE_ABORT: 14,
} as const;

/** Bits of `flags` in START and ADOPT. */
export const shimStartFlags = {
  /** uid and gid are given. */
  USER: 1,
  /** abilities and reason are given; the shim does not try them again. */
  ABILITIES: 2,
  /** The VMM's own filter lets socketpair, recvmsg, mmap, madvise, munmap and close pass. */
  MAPS_ALLOWED: 4,
  /** The VMM sees a /dev/kvm of its own, which its user may open; the host's keeps its mode. */
  OWN_KVM: 8,
} as const;

/** Bits of `abilities`. */
export const shimAbilityBits = {
  /** Injection works though a filter would kill the VMM for it. */
  INJECTION: 1,
  CHANGE_USER: 2,
  /** Injection works where the VMM's own filter lets a call pass. */
  ATTACH: 4,
} as const;

/** What a VMM's socket speaks: QMP, with a greeting and an answer a line; or HTTP/1.1. */
export const shimLanguages = { lines: 0, http: 1 } as const;

export const shimStepKinds = { command: 0, copy: 1 } as const;

export const shimExtentKinds = { map: 0, copy: 1, zero: 2 } as const;

export const shimExitKinds = { exited: 0, signaled: 1, unknown: 2 } as const;

/**
 * The shim protocol's numbers as a C header.
 *
 * @returns the text of `native/shim/protocol.gen.h`
 */
export function shimHeader(): string {
  const lines = ['/* Made from packages/wire/src/shim.ts. Do not edit. */', '#pragma once', ''];
  lines.push(`#define SHIM_VERSION ${SHIM_PROTOCOL_VERSION}`);
  lines.push(`#define SHIM_HEADER_SIZE ${SHIM_HEADER_SIZE}`);
  lines.push(`#define SHIM_MAX_PAYLOAD ${SHIM_MAX_PAYLOAD}`);
  lines.push(`#define SHIM_REPLY ${SHIM_REPLY}`, '');
  enumeration('SF', shimFrames);
  enumeration('START', shimStartFlags);
  enumeration('CAN', shimAbilityBits);
  enumeration('SPEAKS', shimLanguages);
  enumeration('STEP', shimStepKinds);
  enumeration('EXTENT', shimExtentKinds);
  enumeration('EXIT', shimExitKinds);
  return `${lines.join('\n')}\n`;

  function enumeration(prefix: string, values: Readonly<Record<string, number>>): void {
    lines.push('enum {');
    for (const [name, value] of Object.entries(values))
      lines.push(`  ${prefix}_${name.toUpperCase()} = ${value},`);
    lines.push('};', '');
  }
}
