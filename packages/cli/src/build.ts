/** Building a template, with its progress. */
import type { BuildEvent, engineNames, TemplateSource } from '@forkd/api';
import { errorOfBody, type Forkd } from '@forkd/sdk';
import { CliError } from './failure.js';
import { duration, oneLine } from './format.js';
import type { Stage } from './progress.js';

export type BuildDone = Extract<BuildEvent, { type: 'done' }>;

export type EngineName = (typeof engineNames)[number];

export interface BuildRequest {
  template: TemplateSource;
  tag?: string | undefined;
  noCache?: boolean | undefined;
  engine?: EngineName | undefined;
  signal: AbortSignal;
}

/**
 * Builds a template and shows each of its steps in a stage.
 *
 * @throws ForkdError build_failed and others, when the build fails
 */
export async function buildTemplate(client: Forkd, request: BuildRequest, stage: Stage): Promise<BuildDone> {
  const { template, tag, noCache, engine, signal } = request;
  const events = client.templates.build(template, {
    ...(tag !== undefined && { tag }),
    ...(noCache !== undefined && { noCache }),
    ...(engine !== undefined && { engine }),
    signal,
  });
  // The first build of a host proves its accelerator.
  stage.now('finding out what this host can run');
  for await (const event of events) {
    if (event.type === 'done') return event;
    if (event.type === 'failed') throw errorOfBody(event.error);
    if (event.type === 'log') {
      const last = event.text.trimEnd().split('\n').at(-1);
      if (last) stage.now(oneLine(last).slice(0, 60));
    } else if (event.state === 'running') {
      stage.now(event.title);
    } else {
      const time = event.ms === undefined ? '' : ` (${duration(event.ms)})`;
      const state = event.state === 'done' ? '' : `: ${event.state}`;
      stage.line(`${event.title}${state}${event.detail ? ` - ${oneLine(event.detail)}` : ''}${time}`);
    }
  }
  throw new CliError('failed', 'the build ended without a result', 'read daemon.log in the state directory');
}
