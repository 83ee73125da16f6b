#!/bin/sh
# Lays the kernels that came with the image where numba may write, for it reads none elsewhere, and becomes `racer-csd`: the
# server is process 1 and gets the signals. Where nothing can be written, kernels are compiled anew in memory.
set -eu
if [ -z "${NUMBA_CACHE_DIR:-}" ]; then
  kernels="${TMPDIR:-/tmp}/racer-csd-kernels"
  if mkdir -p -m 700 "$kernels" 2>/dev/null && cp -R /opt/racer-csd/kernels/. "$kernels" 2>/dev/null; then
    export NUMBA_CACHE_DIR="$kernels"
  fi
fi
exec racer-csd "$@"
