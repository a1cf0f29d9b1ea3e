#!/usr/bin/env bash
# Which lines of the native code the random calls of fuzz.py reach, in a minute of them.
#
# Needs g++ with gcov, and what building and testing need (CONTRIBUTING.md). PYTHON names the interpreter that has
# torch; WORK a folder to keep the build in; SECONDS_OF_CALLS how long. The copy is what git has at HEAD.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "${PYTHON:-python3}")
work="${WORK:-$(mktemp -d)}"
mkdir -p "$work/source"
git -C "$root" archive HEAD | tar -x -C "$work/source"
cmake -S "$work/source" -B "$work/build" -G Ninja -DPython_EXECUTABLE="$python" -DEDGE_OPS_CUDA=OFF \
  -DCMAKE_CXX_FLAGS_RELEASE="-O0 --coverage" > /dev/null
cmake --build "$work/build" > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
cmake --install "$work/build" --prefix "$work/source/torch-ext" > /dev/null
find "$work/build" -name '*.gcda' -delete
PYTHONPATH="$work/source/torch-ext" "$python" "$work/source/tools/harden/fuzz.py" --seconds "${SECONDS_OF_CALLS:-60}"
cd "$work/build"
find . -name '*.gcda' -exec gcov -n {} + 2> /dev/null | grep -A1 "^File '.*csrc/.*\|^File '.*torch_binding" |
  grep -v '^--' | paste - - | sed "s#File '.*csrc/#csrc/#; s#File '.*torch-ext/#torch-ext/#; s#'\tLines executed:#\t#" |
  sort -u
