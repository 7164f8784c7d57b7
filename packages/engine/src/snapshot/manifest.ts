import Type, { type Static } from 'typebox';

/** Manifest format. A reader refuses another. */
export const MANIFEST_FORMAT = 1;

const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$' });
const closed = { additionalProperties: false };

const FileEntry = Type.Object(
  {
    /** Name in the snapshot's directory. */
    name: Type.String({ pattern: '^[a-z][a-z0-9.-]{0,63}$' }),
    bytes: Type.Integer({ minimum: 0 }),
    /** SHA-256 of each 4 MiB chunk; a chunk that is all hole is the empty string. */
    chunks: Type.Array(Type.Union([Sha256, Type.Literal('')])),
    /** Of a branch's disk: it holds everything, and shows nothing of what is below. */
    whole: Type.Optional(Type.Literal(true)),
  },
  closed,
);

const ExtentPlace = {
  /** First byte in guest RAM, and number of bytes: multiples of a page. */
  guestOffset: Type.Integer({ minimum: 0, multipleOf: 4096 }),
  length: Type.Integer({ minimum: 4096, multipleOf: 4096 }),
};

/** Pages of a layer: in its file, or zero. What is not listed shows the file below. */
const Extent = Type.Union([
  Type.Object(
    {
      kind: Type.Literal('data'),
      ...ExtentPlace,
      /** First byte in the layer's file. */
      fileOffset: Type.Integer({ minimum: 0, multipleOf: 4096 }),
    },
    closed,
  ),
  Type.Object({ kind: Type.Literal('zero'), ...ExtentPlace }, closed),
]);

const SnapshotId = Type.String({ pattern: '^sn-[0-9a-hjkmnp-tv-z]{16}$' });

/** Said of a branch that stands alone: its memory file is a base, its disk is whole. */
const Flat = Type.Object(
  {
    /**
     * All that may differ from the template's memory, in guest order. A machine that was forked from a snapshot below shows the same pages
     * as that one outside of these and of what it has for itself, so that its next branch need look at no others.
     */
    changed: Type.Array(Type.Object(ExtentPlace, closed)),
    /** Of the layer that it was: bytes of its file, and of the memory that it changed. */
    layer: Type.Object(
      { physicalBytes: Type.Integer({ minimum: 0 }), logicalBytes: Type.Integer({ minimum: 0 }) },
      closed,
    ),
  },
  closed,
);

/** Where a snapshot that was branched off a running sandbox comes from. Unless it is flat, its memory file is a layer, its disk an overlay. */
export const BranchOrigin = Type.Object(
  {
    /** The link below: the snapshot that the sandbox was forked from, or its branch before. */
    parent: SnapshotId,
    /** The links from the base to the parent, when it was written. What is below a link that is flat since is not needed any more. */
    chain: Type.Array(SnapshotId, { minItems: 1, maxItems: 64 }),
    sandbox: Type.String(),
    mode: Type.Union([Type.Literal('live'), Type.Literal('diff'), Type.Literal('full')]),
    /** From the last guest instruction before to the first after, ms. */
    pauseMs: Type.Number(),
    extents: Type.Array(Extent),
    /** Overlays between the parent's disk and this one's, lowest first: those of branches that are gone, or have failed. */
    lowerDisks: Type.Array(FileEntry),
    flat: Type.Optional(Flat),
  },
  closed,
);
export type BranchOrigin = Static<typeof BranchOrigin>;

/** What runs a snapshot. A host that differs refuses it (design, section 7). */
export const MachinePin = Type.Object(
  {
    engine: Type.Union([Type.Literal('qemu'), Type.Literal('firecracker')]),
    engineVersion: Type.String(),
    engineSha256: Sha256,
    /** Firmware files that the engine loads, by name. */
    firmware: Type.Record(Type.String(), Sha256),
    machineType: Type.String(),
    cpuModel: Type.String(),
    /** Flags of the host's CPU that guest code may use; empty under tcg. */
    cpuFlags: Type.Array(Type.String()),
    accelerator: Type.Union([Type.Literal('kvm'), Type.Literal('tcg')]),
    kernel: Type.String(),
    kernelSha256: Sha256,
    agentProtocol: Type.Integer(),
    /** Rate at which the guest's TSC ticked, kHz. */
    tscKhz: Type.Number(),
  },
  closed,
);
export type MachinePin = Static<typeof MachinePin>;

const LockedPackage = Type.Object(
  {
    name: Type.String(),
    version: Type.String(),
    /** Of the archive that came from the registry: `sha256:` and hex digits, or `sha512-` and base64. */
    hash: Type.String(),
  },
  closed,
);

/** How a template was built; of a branch, that of the template that its line began with. */
const BuildRecord = Type.Object(
  {
    ms: Type.Number(),
    bootMs: Type.Number(),
    warmMs: Type.Number(),
    /** In order; of the last one, what it took until the manifest was written. */
    steps: Type.Optional(
      Type.Array(
        Type.Object(
          {
            step: Type.String(),
            title: Type.String(),
            cached: Type.Boolean(),
            ms: Type.Number(),
          },
          closed,
        ),
      ),
    ),
    /** Of the disk that it was built on, where the template has a setup: `setUpDigest`. */
    setUp: Type.Optional(Sha256),
    /** What `pip` and `npm` of the template came out as. */
    packages: Type.Optional(
      Type.Object({ pip: Type.Array(LockedPackage), npm: Type.Array(LockedPackage) }, closed),
    ),
  },
  closed,
);

export const Manifest = Type.Object(
  {
    format: Type.Literal(MANIFEST_FORMAT),
    id: SnapshotId,
    /** Milliseconds since 1970. */
    createdAt: Type.Integer(),
    /** Boot of the host under which it was written: as long as that lasts, what was written is there, synced or not. */
    bootId: Type.Optional(Type.String({ maxLength: 64 })),
    template: Type.Object(
      {
        name: Type.String(),
        /** Of everything that the build depends on; the same digest means the same snapshot. */
        digest: Sha256,
        interpreters: Type.Array(Type.Object({ name: Type.String(), handle: Type.Integer() }, closed)),
        user: Type.String(),
        env: Type.Record(Type.String(), Type.String()),
        prime: Type.Array(Type.Object({ interpreter: Type.String(), code: Type.String() }, closed)),
      },
      closed,
    ),
    machine: MachinePin,
    memoryBytes: Type.Integer({ minimum: 1 }),
    vcpus: Type.Integer({ minimum: 1 }),
    diskBytes: Type.Integer({ minimum: 0 }),
    /** Read-only image under cache/images, by content; empty for none. */
    image: Type.Object({ name: Type.String(), sha256: Sha256, bytes: Type.Integer() }, closed),
    branch: Type.Optional(BranchOrigin),
    files: Type.Object({ memory: FileEntry, state: FileEntry, disk: FileEntry }, closed),
    build: BuildRecord,
  },
  closed,
);
export type Manifest = Static<typeof Manifest>;

/** Whether a snapshot needs no other: it is a template's, or flat. */
export function standsAlone({ branch }: Manifest): boolean {
  return branch === undefined || branch.flat !== undefined;
}

/** Every file of a snapshot beside its manifest. */
export function filesOf(manifest: Manifest): Manifest['files']['memory'][] {
  const { memory, state, disk } = manifest.files;
  return [memory, state, disk, ...(manifest.branch?.lowerDisks ?? [])];
}
