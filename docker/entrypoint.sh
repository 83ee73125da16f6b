#!/bin/sh
# Finds a directory for temporary files, copies the image's compiled kernels there (numba reads none from a directory it cannot
# write to), and becomes `racer-csd`: the server is process 1 and gets the signals.
set -eu
if [ ! -w "${TMPDIR:-/tmp}" ] && [ -w /dev/shm ]; then
  export TMPDIR=/dev/shm # every engine gives a container this much, read-only or not
fi
kernels="${TMPDIR:-/tmp}/racer-csd-kernels"
if [ -z "${NUMBA_CACHE_DIR:-}" ] && mkdir -p -m 700 "$kernels" 2>/dev/null \
  && cp -R /opt/racer-csd/kernels/. "$kernels" 2>/dev/null; then
  export NUMBA_CACHE_DIR="$kernels"
fi
exec racer-csd "$@"
