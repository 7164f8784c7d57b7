/**
 * Random numbers that a copy of this process does not share with its siblings. V8's generator and OpenSSL's keep their state
 * in memory that is copied, and Node has no way to seed them; so what JavaScript sees of them is taken from the kernel, which
 * is told of every copy. For OpenSSL's own use (TLS, keys, worker threads) an add-on puts the kernel in the place of its generator.
 */
import crypto from 'node:crypto';
import { openSync, readSync } from 'node:fs';
import { createRequire, syncBuiltinESMExports } from 'node:module';

const POOL = 1024;
const MAX_BYTES = 2 ** 31 - 1;
const source = openSync('/dev/urandom', 'r');
const pool = new BigUint64Array(POOL);
let left = 0;

/** Forgets what was drawn ahead. */
export function renewRandom() {
  pool.fill(0n);
  left = 0;
}

function fill(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  for (let at = 0; at < bytes.length; ) at += readSync(source, bytes, at, bytes.length - at, null);
  return view;
}

function random() {
  if (left === 0) {
    fill(pool);
    left = POOL;
  }
  return Number(pool[--left] >> 11n) / 2 ** 53;
}

function uuid() {
  const b = fill(Buffer.allocUnsafe(16));
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

function randomBytes(size, callback) {
  if (!Number.isInteger(size) || size < 0 || size > MAX_BYTES)
    throw new RangeError(
      `The value of "size" is out of range. It must be >= 0 && <= ${MAX_BYTES}. Received ${size}`,
    );
  const bytes = fill(Buffer.alloc(size));
  if (callback === undefined) return bytes;
  process.nextTick(callback, null, bytes);
}

function part(buffer, offset = 0, size) {
  const view = ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
  const unit = buffer.BYTES_PER_ELEMENT ?? 1;
  const start = offset * unit;
  const end = size === undefined ? view.length : start + size * unit;
  if (!(start >= 0 && end >= start && end <= view.length))
    throw new RangeError(`The range ${offset}, ${size} is outside of a buffer of ${view.length} bytes`);
  return view.subarray(start, end);
}

function randomFillSync(buffer, offset, size) {
  fill(part(buffer, offset, size));
  return buffer;
}

function randomFill(buffer, ...rest) {
  const callback = rest.pop();
  process.nextTick(callback, null, randomFillSync(buffer, ...rest));
}

function randomInt(min, max, callback) {
  if (max === undefined || typeof max === 'function') return randomInt(0, min, max);
  if (!Number.isSafeInteger(min) || !Number.isSafeInteger(max) || max <= min || max - min > 2 ** 48 - 1)
    throw new RangeError(`randomInt takes safe integers, min < max, got ${min} and ${max}`);
  const range = max - min;
  const most = 2 ** 48 - (2 ** 48 % range);
  let value;
  do value = fill(Buffer.allocUnsafe(6)).readUIntBE(0, 6);
  while (value >= most);
  if (callback === undefined) return min + (value % range);
  process.nextTick(callback, null, min + (value % range));
}

function getRandomValues(array) {
  if (array.byteLength > 65536)
    throw new DOMException(
      `The requested length exceeds 65,536 bytes: ${array.byteLength}`,
      'QuotaExceededError',
    );
  return fill(array);
}

/** False where the image's Node cannot load the add-on, or hides its OpenSSL: TLS of siblings is then alike until it seeds itself. */
function installOpenssl() {
  try {
    return createRequire(import.meta.url)('./node-openssl.node').installed;
  } catch {
    return false;
  }
}

/**
 * Puts the kernel's numbers in place of those of V8 and OpenSSL.
 *
 * @returns {boolean} whether OpenSSL's own use is reached too
 */
export function installRandom() {
  const reached = installOpenssl();
  Math.random = random;
  Object.assign(crypto, { randomBytes, randomFill, randomFillSync, randomInt, randomUUID: uuid });
  for (const name of ['pseudoRandomBytes', 'prng', 'rng']) replace(crypto, name, randomBytes);
  // Node 18, Debian 12's, has no globalThis.crypto; its webcrypto is the same object elsewhere.
  const prototype = Object.getPrototypeOf(globalThis.crypto ?? crypto.webcrypto);
  replace(prototype, 'getRandomValues', getRandomValues);
  replace(prototype, 'randomUUID', uuid);
  replace(crypto, 'getRandomValues', getRandomValues);
  syncBuiltinESMExports();
  return reached;
}

function replace(object, name, value) {
  const old = Object.getOwnPropertyDescriptor(object, name);
  if (old === undefined || old.configurable)
    Object.defineProperty(object, name, {
      value,
      configurable: true,
      writable: true,
      enumerable: old?.enumerable ?? true,
    });
}
