/** Files of a guest. Content goes as the body of GET and PUT; paths are query parameters. */
import Type, { type Static } from 'typebox';
import { closed } from './common.js';

const GuestPath = Type.String({
  minLength: 1,
  pattern: '^[^\\u0000]+$',
  description: 'Path inside the guest.',
});

export const fileTypes = [
  'file',
  'directory',
  'symlink',
  'fifo',
  'socket',
  'char',
  'block',
  'unknown',
] as const;

export const FileInfo = Type.Object(
  {
    name: Type.String({ description: 'Last component; bytes that are not UTF-8 become U+FFFD.' }),
    path: Type.String(),
    type: Type.Enum(fileTypes),
    size: Type.Integer(),
    mode: Type.Integer({ description: 'Permission bits, such as 420 (octal 644).' }),
    uid: Type.Integer(),
    gid: Type.Integer(),
    mtime_ms: Type.Number({ description: 'Milliseconds since the epoch.' }),
    target: Type.Optional(Type.String({ description: 'Of a symbolic link.' })),
  },
  { $id: 'FileInfo' },
);
export type FileInfo = Static<typeof FileInfo>;

export const FileList = Type.Array(FileInfo, { $id: 'FileList' });

export const PathQuery = closed({ path: GuestPath });
export const ReadFileQuery = closed({
  path: GuestPath,
  offset: Type.Optional(Type.String({ pattern: '^[0-9]{1,15}$' })),
  length: Type.Optional(Type.String({ pattern: '^[0-9]{1,15}$' })),
});
export const WriteFileQuery = closed({
  path: GuestPath,
  mode: Type.Optional(Type.String({ pattern: '^[0-7]{1,4}$', description: 'Octal, default 644.' })),
  mkdirs: Type.Optional(Type.String({ pattern: '^(true|false)$' })),
});
export const RemoveFileQuery = closed({
  path: GuestPath,
  recursive: Type.Optional(Type.String({ pattern: '^(true|false)$' })),
});

export const MkdirRequest = closed(
  {
    path: GuestPath,
    mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o7777 })),
    parents: Type.Optional(Type.Boolean()),
  },
  { $id: 'MkdirRequest' },
);
export type MkdirRequest = Static<typeof MkdirRequest>;

export const RenameRequest = closed({ from: GuestPath, to: GuestPath }, { $id: 'RenameRequest' });
export type RenameRequest = Static<typeof RenameRequest>;

/** Header of a file's content that carries its FileInfo as JSON. */
export const fileInfoHeader = 'forkd-file-info';
