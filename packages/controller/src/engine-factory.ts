/** How the daemon gets its engine. */

import type { Engine, EngineOptions } from '@forkd/engine';
import * as engineModule from '@forkd/engine';
import { ApiError } from './errors.js';

export type OpenEngine = (options: EngineOptions) => Promise<Engine>;

/** Opens the engine of `@forkd/engine`. */
export const openEngine: OpenEngine = async (options) => {
  const { openEngine: open } = engineModule as unknown as { openEngine?: OpenEngine };
  if (open === undefined) throw new ApiError('engine_error', { problem: 'this build has no engine' });
  return open(options);
};
