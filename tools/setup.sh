#!/usr/bin/env bash
# Installs what `make test` needs and this machine lacks. Says what before it does anything.
set -euo pipefail

packages=()
need() { # need COMMAND PACKAGE...
  command -v "$1" >/dev/null || packages+=("${@:2}")
}
need cc gcc libc6-dev
need make make
need curl curl ca-certificates

if [ "${#packages[@]}" -gt 0 ]; then
  echo "setup: will install from Debian: ${packages[*]}"
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

if ! command -v cargo >/dev/null; then
  echo "setup: cargo is missing; install Rust 1.95 or later first" >&2
  exit 2
fi
for component in rustfmt clippy; do
  if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
    echo "setup: will add the Rust component $component"
    rustup component add "$component"
  fi
done
echo "setup: everything is in place"
