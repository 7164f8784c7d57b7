import { resolve } from 'node:path';
import type { OwnHome } from '../sandbox/home.js';
import { type Library, openLibrary } from '../support/library.js';

/** Takes a home over from its daemon, which ends. Children are of the busybox template. */
export async function takeOver(home: OwnHome): Promise<Library> {
  const snapshotId = (await home.client.snapshots.get('busybox')).id;
  await home.crash();
  const nativeDir = resolve(import.meta.dirname, '../../build/native');
  return await openLibrary({ home: home.path, nativeDir, snapshotId });
}
