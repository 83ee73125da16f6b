#!/usr/bin/env bash
# Chromium and its driver for tests/web, on machines where they are missing. Debian and its kin; elsewhere it says what to do.
set -euo pipefail

have() { command -v "$1" >/dev/null; }

if have chromium && have chromedriver; then
  exit 0
fi
if ! have apt-get; then
  echo "tests/web needs the commands chromium and chromedriver: install both with this system's package manager." >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  have sudo || { echo "tests/web needs chromium and chromium-driver: run as root: apt-get install chromium chromium-driver" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium chromium-driver
