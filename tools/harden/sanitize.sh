#!/usr/bin/env bash
# Builds the library with AddressSanitizer and UndefinedBehaviorSanitizer and runs tests on it.
#
#   tools/harden/sanitize.sh                        the exact, error, framework and process tests
#   tools/harden/sanitize.sh python FILE [ARG ...]  a Python program on that build
#   tools/harden/sanitize.sh pytest ARG ...         other tests
#
# Needs g++ with libasan and libubsan, and what building and testing need (CONTRIBUTING.md). PYTHON names the
# interpreter that has torch; WORK a folder to keep the build in. The copy is what git has at HEAD.
# The first report of either sanitizer ends the process, and so the test. Python allocates by malloc here, so that
# its objects are watched too. Leaks are not reported: the interpreter and torch keep much until the end.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "${PYTHON:-python3}")
work="${WORK:-$(mktemp -d)}"
mkdir -p "$work/source"
git -C "$root" archive HEAD | tar -x -C "$work/source"

flags="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
cmake -S "$work/source" -B "$work/build" -G Ninja -DPython_EXECUTABLE="$python" -DEDGE_OPS_CUDA=OFF \
  -DCMAKE_CXX_FLAGS_RELEASE="$flags" > /dev/null
cmake --build "$work/build" > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
find "$work/source/torch-ext/edge_ops" -maxdepth 1 -name '_edge_ops_wheel_*' -delete
cmake --install "$work/build" --prefix "$work/source/torch-ext" > /dev/null

# The C++ runtime beside libasan: it looks for __cxa_throw before torch brings it.
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0:abort_on_error=1:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export PYTHONMALLOC=malloc PYTHONPATH="$work/source/torch-ext" HF_HUB_OFFLINE=1
cd "$work/source"
case "${1:-}" in
  python) shift && exec env LD_PRELOAD="$preload" "$python" "$@" ;;
  pytest) shift ;;
  *) set -- tests/exact tests/errors tests/framework tests/process tests/public_faults -m "not slow" ;;
esac
exec env LD_PRELOAD="$preload" "$python" -m pytest -q -p no:cacheprovider "$@"
