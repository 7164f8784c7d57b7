/**
 * Builds of templates. One at a time for each tag: who asks for the same build joins it, who asks for another one is told that it is busy.
 * A build that nobody follows any more is cancelled.
 */
import { createHash } from 'node:crypto';
import type { BuildEvent } from '@forkd/api';
import type { BuildOptions, BuildResult, Engine, EngineName } from '@forkd/engine';
import { ApiError, toApiError } from './errors.js';
import type { Log } from './log.js';
import type { Snapshots } from './snapshots.js';
import type { TemplateText } from './templates.js';

export interface BuildsOptions {
  engine: Engine;
  snapshots: Snapshots;
  log: Log;
  /** Called when a build has begun or ended. */
  onChange?: () => void;
}

/** Takes the events of a build as they come. */
export type BuildFollower = (event: BuildEvent) => void;

interface Build {
  digest: string;
  abort: AbortController;
  followers: Set<BuildFollower>;
  /** What a follower that joins late is told: every step, and the end of the output. */
  past: BuildEvent[];
  result: Promise<BuildResult>;
}

/** What a caller says of a build. */
export interface BuildChoices {
  tag: string;
  noCache: boolean;
  engine?: EngineName;
}

/** Log lines that a late follower is told at most. */
const keptLogs = 200;

export class Builds {
  readonly #options: BuildsOptions;
  readonly #builds = new Map<string, Build>();

  constructor(options: BuildsOptions) {
    this.#options = options;
  }

  /** Number of builds that run. */
  get running(): number {
    return this.#builds.size;
  }

  isBuilding(tag: string): boolean {
    return this.#builds.has(tag);
  }

  /**
   * Starts a build, or joins the same one, and resolves when its tag points to its snapshot. `signal` ends the following; the build
   * itself ends when its last follower has gone.
   *
   * @throws ApiError busy at once when another build has this tag; build_failed, build_cancelled and what else the engine says.
   */
  async follow(
    template: TemplateText,
    options: BuildChoices & { signal: AbortSignal; onEvent: BuildFollower },
  ): Promise<BuildResult> {
    const { tag, signal, onEvent } = options;
    const digest = digestOf(template, options);
    let build = this.#builds.get(tag);
    if (build !== undefined && (build.digest !== digest || build.abort.signal.aborted)) {
      throw new ApiError('busy', { what: `the build of ${tag}` });
    }
    if (build === undefined) build = this.#start(template, digest, options);
    else for (const event of build.past) onEvent(event);
    const joined = build;
    joined.followers.add(onEvent);
    const leave = () => {
      joined.followers.delete(onEvent);
      if (joined.followers.size === 0) joined.abort.abort();
    };
    if (signal.aborted) leave();
    signal.addEventListener('abort', leave, { once: true });
    try {
      return await joined.result;
    } finally {
      signal.removeEventListener('abort', leave);
      joined.followers.delete(onEvent);
    }
  }

  /** Cancels all builds and waits for their ends. */
  async close(): Promise<void> {
    const builds = [...this.#builds.values()];
    for (const build of builds) build.abort.abort();
    await Promise.allSettled(builds.map((build) => build.result));
  }

  #start(template: TemplateText, digest: string, options: BuildChoices): Build {
    const { tag } = options;
    const build: Build = {
      digest,
      abort: new AbortController(),
      followers: new Set(),
      past: [],
      result: Promise.resolve().then(() => this.#run(build, template, options)),
    };
    this.#builds.set(tag, build);
    this.#options.onChange?.();
    build.result
      .catch(() => undefined)
      .finally(() => {
        this.#builds.delete(tag);
        this.#options.onChange?.();
      });
    return build;
  }

  async #run(
    build: Build,
    template: TemplateText,
    { tag, noCache, engine: wanted }: BuildChoices,
  ): Promise<BuildResult> {
    const { engine, snapshots, log } = this.#options;
    const current = snapshots.tagTarget(tag);
    const request: BuildOptions & { current?: string } = {
      name: template.name,
      yaml: template.yaml,
      noCache,
      signal: build.abort.signal,
      onProgress: (event) => tell(build, event),
      ...(template.dir !== undefined && { dir: template.dir }),
      ...(current !== undefined && { current }),
      ...(wanted !== undefined && { engine: wanted }),
    };
    log.info({ template: template.name, tag }, 'a build begins');
    try {
      const result = await engine.buildTemplate(request);
      await snapshots.moveTag(tag, result.manifest);
      log.info(
        { template: template.name, tag, snapshot: result.snapshotId, ms: result.ms },
        'a build is done',
      );
      return result;
    } catch (error) {
      log.warn({ template: template.name, tag, err: error }, 'a build failed');
      if (build.abort.signal.aborted)
        throw new ApiError('build_cancelled', { value: template.name }, { cause: error });
      throw toApiError(error);
    }
  }
}

function tell(build: Build, event: BuildEvent): void {
  build.past.push(event);
  const logs = build.past.filter((entry) => entry.type === 'log');
  if (logs.length > keptLogs) build.past.splice(build.past.indexOf(logs[0] as BuildEvent), 1);
  for (const follower of build.followers) follower(event);
}

function digestOf(template: TemplateText, { noCache, engine }: BuildChoices): string {
  const parts = JSON.stringify([template.name, template.yaml, template.dir ?? '', noCache, engine ?? '']);
  return createHash('sha256').update(parts).digest('hex');
}
