#!/usr/bin/env bash
# Installs the additional tools of `make bench`: load generators and peer rate limiters. Prints each step before it runs.
# A peer that cannot be installed is skipped with a warning, and its rows in the report read "not installed".
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
need haproxy haproxy
need pgrep procps
# The build of throttlecrab-server needs it.
need protoc protobuf-compiler
if [ "${#packages[@]}" -gt 0 ]; then
  echo "setup: will install from Debian: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
  for service in nginx haproxy; do
    if [[ " ${packages[*]} " =~ " $service"(-light)?" " ]]; then
      echo "setup: will stop the service of the package $service, because benchmarks start their own servers"
      "${as_root[@]}" service "$service" stop >/dev/null 2>&1 || true
      "${as_root[@]}" update-rc.d "$service" disable >/dev/null 2>&1 || true
    fi
  done
fi

here=$(cd "$(dirname "$0")" && pwd)
peers="$HOME/.cache/tidegate-tools/peers"
mkdir -p "$peers/bin" "$peers/lib"

peer() { # peer NAME FILE INSTALL
  [ ! -e "$peers/$2" ] || return 0
  echo "setup: will install $1"
  local scratch
  scratch=$(mktemp -d)
  # A function that is part of a condition runs without `set -e`, so each one chains its commands.
  "$3" "$scratch" && [ -e "$peers/$2" ] || echo "setup: warning: cannot install $1; the benchmarks skip it" >&2
  # Go makes its module cache read-only.
  chmod -R u+w "$scratch"
  rm -rf "$scratch"
}

install_throttlecrab() { # install_throttlecrab FOLDER
  CARGO_TARGET_DIR="$1" cargo install --quiet --locked --version 0.4.40 --root "$peers" throttlecrab-server
}

# crates.io has the source of the module; cargo vendor copies it.
install_redis_cell() { # install_redis_cell FOLDER
  cargo init --quiet --vcs none --lib --name vendored "$1/vendored" &&
    (cd "$1/vendored" && cargo add --quiet redis-cell@=0.2.2 && cargo vendor --quiet crates >/dev/null) &&
    RUSTFLAGS="--cap-lints allow -C link-arg=-Wl,-rpath,$(rustc --print sysroot)/lib" CARGO_TARGET_DIR="$1" \
      cargo build --quiet --release --manifest-path "$1/vendored/crates/redis-cell/Cargo.toml" &&
    install -D -m 755 "$1/release/libredis_cell.so" "$peers/lib/libredis_cell.so"
}

# The library of limitador in a program of its own, because it brings thirty crates that Tidegate does not use.
install_limitador() { # install_limitador FOLDER
  CARGO_TARGET_DIR="$1" cargo build --quiet --locked --release --manifest-path "$here/../bench/limitador/Cargo.toml" &&
    install -D -m 755 "$1/release/limitador-bench" "$peers/bin/limitador-bench"
}

install_rate_limiter_flexible() { # install_rate_limiter_flexible FOLDER
  npm install --prefix "$1" --ignore-scripts --no-audit --no-fund --loglevel error \
    rate-limiter-flexible@11.4.0 ioredis@5.9.2 &&
    rm -rf "$peers/lib/node_modules" && mv "$1/node_modules" "$peers/lib/node_modules"
}

install_ratelimit() { # install_ratelimit FOLDER
  command -v go >/dev/null &&
    GOPATH="$1/path" GOCACHE="$1/cache" GOBIN="$1/bin" GOFLAGS=-p=2 \
      go install github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36 &&
    install -D -m 755 "$1/bin/service_cmd" "$peers/bin/envoyproxy-ratelimit"
}

peer "throttlecrab-server 0.4.40 from crates.io" bin/throttlecrab-server install_throttlecrab
peer "redis-cell 0.2.2 from crates.io" lib/libredis_cell.so install_redis_cell
peer "the library limitador 0.14.0 from crates.io" bin/limitador-bench install_limitador
peer "rate-limiter-flexible 11.4.0 from npm" lib/node_modules/rate-limiter-flexible install_rate_limiter_flexible
peer "envoyproxy/ratelimit with Go, which takes some minutes" bin/envoyproxy-ratelimit install_ratelimit
