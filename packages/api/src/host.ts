/** The daemon and its host. */
import Type, { type Static } from 'typebox';

export const Health = Type.Object({ ok: Type.Literal(true) }, { $id: 'Health' });

export const VersionInfo = Type.Object(
  { version: Type.String(), api: Type.Literal('v1') },
  { $id: 'VersionInfo' },
);
export type VersionInfo = Static<typeof VersionInfo>;

const StandbyCount = Type.Object({
  ready: Type.Integer({ description: 'Waiting now.' }),
  hits: Type.Integer({ description: 'Forks that found one.' }),
  misses: Type.Integer({ description: 'Forks that wanted one and found none.' }),
});

export const DaemonInfo = Type.Object(
  {
    version: Type.String(),
    pid: Type.Integer(),
    home: Type.String(),
    socket: Type.String(),
    tcp: Type.Union([Type.String(), Type.Null()], {
      description: 'HOST:PORT, or null when not listening on TCP.',
    }),
    tcp_problem: Type.Optional(Type.String({ description: 'Why it does not listen on TCP.' })),
    token_file: Type.Union([Type.String(), Type.Null()]),
    started_at_unix: Type.Integer(),
    idle_exit_secs: Type.Integer({ description: '0: never ends by itself.' }),
    standby: Type.Object(
      { process: StandbyCount, primed: StandbyCount },
      { description: 'VMMs and children made ahead of demand.' },
    ),
    sandboxes: Type.Integer(),
    builds: Type.Integer(),
  },
  { $id: 'DaemonInfo' },
);
export type DaemonInfo = Static<typeof DaemonInfo>;

/** Facts of the host as the engine finds them; read by doctor. */
export const HostFacts = Type.Record(Type.String(), Type.Unknown(), { $id: 'HostFacts' });
export type HostFacts = Static<typeof HostFacts>;
