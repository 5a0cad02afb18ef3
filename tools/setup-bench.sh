#!/usr/bin/env bash
# Installs the additional tools of `make bench`: load generators and peer rate limiters. Prints each step before it runs.
set -euo pipefail

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

packages=()
need() { # need COMMAND PACKAGE...
  command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || packages+=("${@:2}")
}
need wrk wrk
need h2load nghttp2-client
need nginx nginx-light
need pgrep procps
# The build of throttlecrab-server needs it.
need protoc protobuf-compiler
if [ "${#packages[@]}" -gt 0 ]; then
  echo "setup: will install from Debian: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
  if [[ " ${packages[*]} " == *" nginx-light "* ]]; then
    "${as_root[@]}" service nginx stop >/dev/null 2>&1 || true
    "${as_root[@]}" update-rc.d nginx disable >/dev/null 2>&1 || true
  fi
fi

crab="$HOME/.cache/tidegate-tools/throttlecrab"
if [ ! -x "$crab/bin/throttlecrab-server" ]; then
  echo "setup: will build throttlecrab-server 0.4.40 from crates.io"
  cargo install --quiet --locked --version 0.4.40 --root "$crab" throttlecrab-server ||
    echo "setup: warning: cannot build throttlecrab-server; the benchmarks skip it" >&2
fi
