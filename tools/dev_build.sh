#!/usr/bin/env bash
# Builds the native library in place, for work on a checkout: PYTHONPATH=torch-ext then imports it.
# Usage: tools/dev_build.sh [cmake options]; PYTHON names the interpreter that has torch.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build="${BUILD_DIR:-$root/build/dev}"
cmake -S "$root" -B "$build" -G Ninja -DPython_EXECUTABLE="$(command -v "${PYTHON:-python3}")" "$@" > /dev/null
cmake --build "$build"
find "$root/torch-ext/edge_ops" -maxdepth 1 \( -name '_edge_ops_wheel_*' -o -name _ops.py \) -delete
cmake --install "$build" --prefix "$root/torch-ext" > /dev/null
