#!/usr/bin/env bash
# Installs what `make bench` needs beyond the tests: load generators, and peers to be measured beside. Says what first.
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
# throttlecrab-server builds its messages with it.
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
    echo "setup: warning: no throttlecrab-server, its lines will be missing" >&2
fi
