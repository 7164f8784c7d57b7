/** How a sandbox ended by itself, for people and programs. */
import type { ExitInfo } from '@forkd/api';
import { describeFault, type VmmExit } from '@forkd/engine';

/** Says what an exit of a VMM means. An unknown one is never taken for success. */
export function exitInfo(exit: VmmExit, now: number = Date.now()): ExitInfo {
  return {
    kind: exit.kind,
    ...(exit.kind === 'exited' && { code: exit.code }),
    ...(exit.kind === 'signaled' && { signal: exit.signal }),
    reason: reasonOf(exit),
    last_words: exit.lastWords,
    at_unix: Math.floor(now / 1000),
  };
}

function reasonOf(exit: VmmExit): string {
  switch (exit.kind) {
    case 'exited':
      return exit.code === 0
        ? 'the guest powered off, or its kernel stopped'
        : `its VMM failed with code ${exit.code}`;
    case 'signaled': {
      if (exit.memoryFault) {
        const { what, remedy } = describeFault(exit.memoryFault);
        return `its VMM was killed by ${exit.signal}: ${what}. ${remedy}`;
      }
      return exit.signal === 'SIGKILL'
        ? 'its VMM was killed by SIGKILL: by the host for want of memory, or by hand'
        : `its VMM was killed by ${exit.signal}`;
    }
    case 'unknown':
      return 'its VMM is gone, and so is the shim that knew why';
  }
}
