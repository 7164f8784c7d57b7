import { engineNames, type TemplateCost, type TemplateDetail, type TemplateInfo } from '@forkd/api';
import { Command, Option } from 'commander';
import { nameOf, templateSource } from '../arguments.js';
import { type BuildDone, buildTemplate, type EngineName } from '../build.js';
import { action } from '../context.js';
import { age, bytes, duration, oneLine } from '../format.js';
import { facts, table } from '../output.js';
import { runStages } from '../progress.js';

/** `forkd template build|ls|show|rm`. */
export function templateCommand(): Command {
  const group = new Command('template').description('templates: recipes whose build makes a snapshot');
  for (const command of [build(), list(), show(), remove()]) group.addCommand(command);
  return group;
}

function build(): Command {
  const command = new Command('build')
    .description('build a template and move its tag to the new snapshot')
    .argument('<template>', 'name of a template, or path of a template file')
    .option('-t, --tag <tag>', "tag that is moved (default: the template's name)")
    .addOption(
      new Option(
        '--engine <engine>',
        'what runs it; "all": one snapshot for each, tagged TAG-ENGINE (default: the best that works here)',
      ).choices([...engineNames, 'all']),
    )
    .option('--no-cache', 'build every stage anew');
  return action<[string, BuildChoices]>(command, async (context, template, options) => {
    const source = templateSource(template);
    const client = await context.client();
    const done: BuildDone[] = [];
    const stages = enginesOf(options.engine).map((engine) => ({
      title: engine === undefined ? `Building ${template}` : `Building ${template} for ${engine}`,
      run: async (stage: Parameters<typeof buildTemplate>[2]) => {
        const tag = options.engine === 'all' ? `${options.tag ?? nameOf(template)}-${engine}` : options.tag;
        const request = { template: source, tag, noCache: !options.cache, engine, signal: context.signal };
        const result = await buildTemplate(client, request, stage);
        done.push(result);
        return result.cached ? 'nothing has changed' : 'built';
      },
    }));
    await runStages(stages, context.out.json);
    const say = ({ tag, snapshot_id }: BuildDone): string => `${tag} -> ${snapshot_id}`;
    const [only] = done;
    if (options.engine === 'all') context.out.answer(done, (all) => all.map(say).join('\n'));
    else if (only) context.out.answer(only, say);
    return 0;
  });
}

interface BuildChoices {
  tag?: string;
  cache: boolean;
  engine?: EngineName | 'all';
}

function enginesOf(wanted: BuildChoices['engine']): (EngineName | undefined)[] {
  return wanted === 'all' ? [...engineNames] : [wanted];
}

/** A template's name: that of its file, where it is one. */
function list(): Command {
  return action(new Command('ls').description('list templates'), async (context) => {
    const templates = await (await context.client()).templates.list(context.signal);
    context.out.answer(templates, (all) =>
      table(['TEMPLATE', 'STATE', 'BUILT', 'DESCRIPTION'], all.map(row)),
    );
    return 0;
  });
}

function show(): Command {
  const command = new Command('show')
    .description('show a template, and what it has cost in time, disk and memory')
    .argument('<template>', 'name');
  return action<[string]>(command, async (context, name) => {
    const detail = await (await context.client()).templates.get(name, context.signal);
    context.out.answer(detail, templateText);
    return 0;
  });
}

function remove(): Command {
  const command = new Command('rm')
    .description('remove what a template has built; its file stays')
    .argument('<template>', 'name');
  return action<[string]>(command, async (context, name) => {
    const client = await context.client();
    // Fails with the right words when there is no such template.
    await client.templates.get(name, context.signal);
    await client.snapshots.remove(name, context.signal);
    context.out.answer({ removed: name }, () => name);
    return 0;
  });
}

function row(template: TemplateInfo): string[] {
  return [
    template.name,
    stateOf(template),
    age(template.built_at_unix),
    oneLine(template.problem ?? template.description ?? ''),
  ];
}

function stateOf({ problem, building, built }: TemplateInfo): string {
  if (problem !== undefined) return 'invalid';
  if (building) return 'building';
  return built ? 'built' : '-';
}

function templateText(template: TemplateDetail): string {
  const head = facts([
    ['template', template.name],
    ['description', template.description],
    ['file', template.path],
    ['state', stateOf(template)],
    ['problem', template.problem],
    ['snapshot', template.snapshot_id],
    ['built', template.built_at_unix === undefined ? undefined : age(template.built_at_unix)],
    ...(template.cost ? costFacts(template.cost) : []),
    ['last log', template.logs[0]],
  ]);
  const parts = [head, template.cost && lockText(template.cost), template.cost && stepTable(template.cost)];
  return [...parts, template.yaml?.trimEnd()].filter(Boolean).join('\n\n');
}

function costFacts(cost: TemplateCost): [string, string][] {
  const { image_users: users } = cost;
  const shared = users > 1 ? `, shared by ${users} snapshots` : '';
  return [
    ['built in', duration(cost.build_ms)],
    [
      'memory',
      `${bytes(cost.memory_logical_bytes)} each; ${bytes(cost.memory_physical_bytes)} shared by all children`,
    ],
    [
      'disk',
      `${bytes(cost.disk_logical_bytes)} each; ${bytes(cost.disk_physical_bytes)} written by the build`,
    ],
    [
      'on this host',
      `${bytes(cost.own_bytes)} of its own, and the image: ${bytes(cost.image_bytes)}${shared}`,
    ],
    ['sandboxes', String(cost.sandboxes)],
  ];
}

function lockText({ packages }: TemplateCost): string | undefined {
  const rows = (['pip', 'npm'] as const).flatMap((manager) =>
    packages[manager].map(({ name, version, hash }) => [manager, name, version, `${hash.slice(0, 22)}...`]),
  );
  return rows.length === 0 ? undefined : table(['FROM', 'PACKAGE', 'VERSION', 'HASH'], rows);
}

function stepTable({ steps }: TemplateCost): string | undefined {
  if (steps.length === 0) return undefined;
  const rows = steps.map(({ step, title, cached, ms }) => [
    step,
    duration(ms),
    cached ? 'cached' : 'done',
    oneLine(title),
  ]);
  return table(['STEP', '>TIME', 'STATE', 'WHAT'], rows);
}
