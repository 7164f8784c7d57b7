// What every script starts with. Any Node that knows modules must be able to parse this file (so: syntax of 2015),
// to be told that it is too old.
const needed = [20, 18, 1];

/**
 * Runs a script if this Node is new enough, else says what is needed.
 *
 * @param {() => Promise<number>} script loads and runs the rest; answers the exit code
 */
export function start(script) {
  if (!isNewEnough()) {
    console.error(`Node ${needed.join('.')} or newer needed, found ${process.versions.node}`);
    console.error('hint: install a current Node.js from https://nodejs.org and run the same command again');
    process.exitCode = 1;
    return;
  }
  script().then(
    (code) => {
      process.exitCode = code;
    },
    (error) => {
      console.error(error);
      process.exitCode = 1;
    },
  );
}

function isNewEnough() {
  const found = process.versions.node.split('.').map(Number);
  const index = needed.findIndex((part, i) => found[i] !== part);
  return index === -1 || found[index] > needed[index];
}
