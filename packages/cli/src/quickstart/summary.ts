import { bytes, duration, oneLine } from '../format.js';
import type { Output } from '../output.js';
import { table } from '../output.js';
import type { DemoResult } from './demo.js';

/** What the quickstart shows at its end. */
export function summary(result: DemoResult, paint: Output['paint']): string {
  const { children, cold, template } = result;
  const rows = children.map((child, index) => [
    String(index + 1),
    child.id,
    duration(child.fork_ms),
    duration(child.first_answer_ms),
    oneLine(child.answer),
    bytes(child.memory_bytes),
  ]);
  const lines = [
    table(['>#', 'CHILD', '>FORKED', '>FIRST ANSWER', '>ANSWER', '>MEMORY'], rows),
    '',
    `Question: ${result.question}`,
    result.all_different ? `Answers:  ${children.length}, all different` : 'Answers:  NOT all different',
  ];
  if (cold !== null) {
    const total = cold.boot_ms + cold.warm_ms;
    const median = children.map((c) => c.first_answer_ms).sort((a, b) => a - b)[
      Math.floor(children.length / 2)
    ];
    const factor = median ? `; a fork was ${Math.round(total / median)} times as fast` : '';
    lines.push(
      `Cold:     ${duration(total)} for the same machine (boot ${duration(cold.boot_ms)}, warm-up ${duration(cold.warm_ms)})${factor}`,
    );
  }
  if (result.accelerator === 'tcg') {
    lines.push(
      'Speed:    guest code runs under emulation (tcg), since KVM cannot be used here; "npx forkd doctor" says why',
    );
  }
  return [...lines, '', paint('bold', 'Try next:'), ...nextSteps(template)].join('\n');
}

function nextSteps(template: string): string[] {
  const use =
    template === 'python'
      ? ['npx forkd eval $id "numpy.random.rand(3)"', 'ask its warm Python']
      : ['npx forkd exec $id uname -a', 'run a command in it'];
  const steps: readonly (readonly string[])[] = [
    [`id=$(npx forkd fork ${template})`, 'start a sandbox'],
    use,
    ['npx forkd shell $id', 'a terminal in it'],
    ['npx forkd rm $id', 'end it'],
    ['docs/templates.md', 'make a template of your own'],
  ];
  return table(['', ''], steps)
    .split('\n')
    .slice(1)
    .map((line) => `  ${line}`);
}
