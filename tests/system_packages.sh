#!/bin/sh
# Installs those of the named Debian packages that this machine lacks, without starting their services.
set -eu

missing=""
for package in "$@"; do
  command -v "$package" >/dev/null && continue # its program, however it got here
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) || status=""
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "The tests need these Debian packages, and there is no apt-get here:$missing. Install what carries them by hand." >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  as_root="sudo"
  if ! command -v sudo >/dev/null; then
    echo "The tests need these Debian packages. Install them as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
  fi
fi

# Debian starts the services it installs unless this file forbids it; an existing file belongs to the machine's owner.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod 0755 "$policy"
  trap '$as_root rm -f "$policy"' EXIT
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086 - one word for each package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
if command -v systemctl >/dev/null; then # nor at the next boot
  for package in $missing; do
    $as_root systemctl --quiet disable "$package" 2>/dev/null || true
  done
fi
