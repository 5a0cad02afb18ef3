#!/usr/bin/env bash
# Compares crates/tidegate/public-api.txt with the public interface of the crate; --write replaces it.
set -euo pipefail
cd "$(dirname "$0")/.."
# RUSTC_BOOTSTRAP below changes what build scripts find. In a shared folder, each run would build all dependencies again.
target=${CARGO_TARGET_DIR:-target}/public-api
for package in tidegate tidegate-core tidegate-limiter tidegate-redis tidegate-rules; do
  # The JSON output of rustdoc is unstable.
  RUSTC_BOOTSTRAP=1 "${CARGO:-cargo}" rustdoc --locked --quiet --target-dir "$target" -p "$package" --all-features --lib -- \
    -Zunstable-options --output-format json
done
found=$(mktemp)
trap 'rm -f "$found"' EXIT
"${CARGO:-cargo}" run --locked --quiet --manifest-path tools/public-api/Cargo.toml -- "$target/doc" >"$found"
if [ "${1:-}" = --write ]; then
  cp "$found" crates/tidegate/public-api.txt
elif ! diff -u crates/tidegate/public-api.txt "$found"; then
  echo "public-api: the public interface has changed; run make public-api and review the difference" >&2
  exit 1
fi
