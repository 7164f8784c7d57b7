import * as agent from './agent.js';

/**
 * The agent protocol's numbers as a C header, so that both sides are made from one source.
 *
 * @returns the text of `protocol.gen.h`
 */
export function agentHeader(): string {
  const lines = [
    '/* Made from packages/wire/src/agent.ts by `npm run generate`. Do not edit. */',
    '#pragma once',
    '',
  ];
  const define = (name: string, value: number): void => void lines.push(`#define ${name} ${value}`);
  define('FK_VERSION', agent.AGENT_PROTOCOL_VERSION);
  define('FK_SYNC_SIZE', agent.SYNC_SIZE);
  define('FK_HEADER_SIZE', agent.FRAME_HEADER_SIZE);
  define('FK_MAX_PAYLOAD', agent.MAX_FRAME_PAYLOAD);
  define('FK_MAX_REQUEST', agent.MAX_REQUEST_BYTES);
  define('FK_MAX_RESPONSE', agent.MAX_RESPONSE_BYTES);
  define('FK_INITIAL_WINDOW', agent.INITIAL_WINDOW);
  define('FK_MAX_REQUESTS', agent.MAX_REQUESTS);
  define('FK_PROCESS_RING', agent.PROCESS_RING_BYTES);
  lines.push(`#define FK_SYNC_MAGIC { ${bytes(agent.SYNC_MAGIC_HEX)} }`);
  lines.push(`#define FK_SYNC_REPLY_MAGIC { ${bytes(agent.SYNC_REPLY_MAGIC_HEX)} }`, '');
  enumeration('FT', agent.frameTypes);
  enumeration('RS', agent.requestStates);
  enumeration('V', agent.verbs);
  enumeration('F', agent.fields);
  enumeration('OUTCOME', agent.outcomeKinds);
  enumeration('WATCH', agent.watchEvents);
  enumeration('ST', agent.statusCodes);
  return `${lines.join('\n')}\n`;

  function enumeration(prefix: string, values: Readonly<Record<string, number>>): void {
    lines.push('enum {');
    for (const [name, value] of Object.entries(values))
      lines.push(`  ${prefix}_${name.toUpperCase()} = ${value},`);
    lines.push('};', '');
  }
}

function bytes(hex: string): string {
  return (hex.match(/../g) ?? []).map((b) => `0x${b}`).join(', ');
}
