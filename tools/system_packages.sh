#!/usr/bin/env bash
# Installs what the build and the tests need of the system where it is missing: as root, where apt-get is.
# Usage: tools/system_packages.sh [python]
set -euo pipefail
python="${1:-python3}"
missing=()
command -v g++ > /dev/null || missing+=(g++)
command -v objdump > /dev/null || missing+=(binutils)
command -v "$python" > /dev/null || missing+=(python3)
"$python" -c 'import ensurepip' 2> /dev/null || missing+=(python3-venv)
header='import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
"$python" -c "$header" 2> /dev/null || missing+=(python3-dev)
if [ "$(uname -m)" = x86_64 ]; then # older processors, and AArch64's row kernels, for the tests
  command -v qemu-x86_64-static > /dev/null || missing+=(qemu-user-static)
  command -v aarch64-linux-gnu-g++ > /dev/null || missing+=(g++-aarch64-linux-gnu)
fi
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
elif command -v g++ > /dev/null; then
  echo "not installed, for want of root or apt-get: ${missing[*]} (tests that need them are skipped)" >&2
else
  echo "please install: ${missing[*]}" >&2
  exit 1
fi
