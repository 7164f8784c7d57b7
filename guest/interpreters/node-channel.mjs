/** The other thread of node.mjs: the conversation at descriptors 3 and 4, and the output of user code at 5 and 6. */
import { readSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { StringDecoder } from 'node:string_decoder';
import { parentPort } from 'node:worker_threads';

const READ_SIZE = 65536;
const REAL_STDERR = 7;
/** A child that goes on writing must not keep a result back: at most about what a pipe can hold. */
const MOST_READS = 32;

const buffer = Buffer.alloc(READ_SIZE);
const pause = new Int32Array(new SharedArrayBuffer(4));
let ready = false;
let running = null;
const waiting = [];

const outputs = [
  { name: 'stdout', fd: 5, decoder: new StringDecoder('utf8') },
  { name: 'stderr', fd: 6, decoder: new StringDecoder('utf8') },
];
for (const output of outputs) {
  output.socket = new Socket({ fd: output.fd, readable: true, writable: false });
  output.socket.on('data', (chunk) => told(output, chunk));
}

let rest = '';
const decoder = new StringDecoder('utf8');
const input = new Socket({ fd: 3, readable: true, writable: false });
input.on('data', (chunk) => {
  const lines = (rest + decoder.write(chunk)).split('\n');
  rest = lines.pop();
  for (const line of lines) received(line);
});
input.on('end', () => process.exit(0));

parentPort.on('message', (message) => {
  drain();
  if (message.type === 'ready') {
    ready = true;
    sayReady();
    next();
  } else if (message.type === 'exit') process.exit(message.code);
  else {
    send(message);
    running = null;
    next();
  }
});

function received(line) {
  let message;
  try {
    message = JSON.parse(line);
  } catch {
    return; // half a line, cut off when this process was copied
  }
  if (message?.type === 'hello') {
    if (ready) sayReady(); // else it is about to be said anyway
  } else if (message?.type === 'eval') {
    waiting.push(message);
    next();
  }
}

function next() {
  if (!ready || running !== null || waiting.length === 0) return;
  const message = waiting.shift();
  running = message.id;
  parentPort.postMessage(message);
}

function sayReady() {
  send({ type: 'ready', language: 'node', version: process.versions.node });
}

function told({ name, decoder }, chunk) {
  if (!ready) {
    writeAll(REAL_STDERR, chunk);
    return;
  }
  const text = decoder.write(chunk);
  if (text !== '') send({ type: 'output', id: running, stream: name, text });
}

/** What the code wrote before it ended is in the pipes by now. */
function drain() {
  for (const output of outputs) {
    for (let i = 0; i < MOST_READS; i++) {
      const length = readSome(output.fd);
      if (length <= 0) break;
      told(output, buffer.subarray(0, length));
    }
    const text = output.decoder.end();
    if (text !== '' && ready) send({ type: 'output', id: running, stream: output.name, text });
  }
}

function readSome(fd) {
  try {
    return readSync(fd, buffer);
  } catch (error) {
    if (error.code === 'EAGAIN') return 0;
    throw error;
  }
}

function send(message) {
  writeAll(4, Buffer.from(`${JSON.stringify(message)}\n`));
}

function writeAll(fd, bytes) {
  let at = 0;
  while (at < bytes.length) {
    try {
      at += writeSync(fd, bytes, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(pause, 0, 0, 1); // somebody made the pipe non-blocking
    }
  }
}
