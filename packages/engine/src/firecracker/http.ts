/** A request as bytes, for the shim, which puts none together. */
export function requestBytes(method: 'PATCH' | 'PUT', path: string, value: object): string {
  const body = JSON.stringify(value);
  return [
    `${method} ${path} HTTP/1.1`,
    'Host: localhost',
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    '',
    body,
  ].join('\r\n');
}
