/** Names of files and sockets in a VMM's working directory. A state file has those of disks and vsock in it: they are the same everywhere. */
export const fcFiles = {
  api: 'api.sock',
  vsock: 'agent.sock',
  image: 'image',
  disk: 'disk',
  memory: 'memory',
  state: 'state',
  /** A directory, where a memory file would be written. */
  noMemory: 'no-memory',
} as const;

/** Ids of the drives, in the guest's order. */
export const drives = { image: 'image', disk: 'disk' } as const;

/** The port that the guest's agent listens on. */
export const AGENT_PORT = 52;

/** Counts up when the devices of a machine change, or the names above. */
export const DEVICES = 1;
