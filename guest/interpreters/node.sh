#!/bin/sh
# Starts the Node interpreter. Node cannot duplicate descriptors, so the shell moves the conversation away from 0 and 1 and
# puts pipes in place of the standard streams, for user code and its children:
#   3, 4 the conversation    5, 6 the pipes' ends to read    7 the real stderr
set -e
command -v node >/dev/null || { echo "node.sh: there is no node in PATH ($PATH): install it in the image" >&2; exit 127; }
here=$(dirname "$0")
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/out" "$pipes/err"
exec 3<&0 4>&1 7>&2 </dev/null
# Opened for both, the readers' ends do not wait for a writer; the writers' are opened apart, so that they stay blocking.
exec 5<>"$pipes/out" 6<>"$pipes/err" 8>"$pipes/out" 9>"$pipes/err"
rm -rf "$pipes"
trap - EXIT
FORKD_CHANNEL=3 exec node "$here/node.mjs" "$@" >&8 2>&9 8>&- 9>&-
