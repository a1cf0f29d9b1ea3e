#!/usr/bin/env bash
# Builds the whole library for AArch64 and runs the package on it, under emulation: import, self-check, the exact
# tests of every operator, and `edge-ops qualify`, whose record goes to RECORD.
#
#   tools/harden/aarch64.sh              builds and runs all of it (minutes)
#   tools/harden/aarch64.sh build        prints the library's path
#   tools/harden/aarch64.sh python ARG   the emulated interpreter with the package
#
# Needs Debian 12 (its python3.11 for arm64 is fetched into a private folder; nothing is installed), dpkg,
# aarch64-linux-gnu-g++, qemu-aarch64-static, and PYTHON with cmake, ninja and pip. torch 2.10.0 is the newest whose
# AArch64 wheel on PyPI is a CPU build. WORK names a folder to keep (about 1 GB); what is there is not fetched again.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "${PYTHON:-python3}")
work="${WORK:-$root/build/aarch64}"
record="${RECORD:-$work/qualification.json}"
mkdir -p "$work"

# An interpreter: Debian's, unpacked. An empty status file makes apt fetch all that it depends on.
if [ ! -x "$work/root/usr/bin/python3.11" ]; then
  apt="$work/apt"
  mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
  : > "$apt/status"
  options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state"
    -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install --yes --download-only --no-install-recommends \
    python3.11 libpython3.11-stdlib libstdc++6 libgomp1 > /dev/null
  for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$work/root.part"; done
  mv "$work/root.part" "$work/root"
fi

# Its packages, by name: pip would choose the dependencies of this machine's architecture.
if [ ! -d "$work/site/torch" ]; then
  "$python" -m pip --disable-pip-version-check install -q --no-deps --target "$work/site.part" --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    torch==2.10.0 numpy typing_extensions sympy mpmath filelock jinja2 markupsafe networkx fsspec \
    pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers
  mv "$work/site.part" "$work/site"
fi

package="$work/package"
rm -rf "$package"
mkdir -p "$package"
cp -r "$root/torch-ext/edge_ops" "$package/"
rm -f "$package"/edge_ops/_edge_ops_* "$package"/edge_ops/_ops.py
cmake -S "$root" -B "$work/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/tools/aarch64-toolchain.cmake" \
  -DTORCH_DIR="$work/site/torch" -DPython_EXECUTABLE="$python" > /dev/null
cmake --build "$work/build" > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
cmake --install "$work/build" --prefix "$package" > /dev/null

emulated() {
  qemu-aarch64-static -L "$work/root" -E LD_LIBRARY_PATH="$work/site/torch/lib" \
    -E PYTHONPATH="$package:$work/site:$root/tests" -E PYTHONDONTWRITEBYTECODE=1 -E OMP_NUM_THREADS=2 \
    -E EDGE_OPS_TEST_PROFILE=emulated -E EDGE_OPS_TEST_EXPECT_ISA=neon "$work/root/usr/bin/python3.11" "$@"
}

case "${1:-all}" in
  build) ls "$package"/edge_ops/*.abi3.so ;;
  python) shift && emulated "$@" ;;
  all)
    cd "$root"
    emulated -m edge_ops info
    emulated -m pytest -q -p no:cacheprovider -c "$root/pytest.ini" --rootdir "$root" tests/exact \
      -k "level or any_call and not reference or public and sizes"
    if [ -f "$root/torch-ext/edge_ops/cli/qualify.py" ]; then
      emulated -m edge_ops qualify --record "$record"
    fi
    ;;
  *) sed -n '2,13p' "$0" >&2 && exit 2 ;;
esac
