import { sessionsGoOnThroughBranches } from '../../support/sessions.js';
import { dropAllOf } from '../checks.js';
import type { Scenario } from '../types.js';

export const sessions: Scenario[] = [
  {
    area: 'branch',
    name: 'a tcp connection, a watch and commands go on through branches',
    async run(stage) {
      let source = '';
      {
        await using library = await stage.library();
        const machine = await library.fork();
        source = machine.id;
        try {
          await sessionsGoOnThroughBranches(machine, stage.slowness);
        } finally {
          await machine.destroy();
        }
      }
      await dropAllOf(stage, source);
    },
  },
];
