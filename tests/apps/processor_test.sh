#!/usr/bin/env bash
# processor_test.sh PROGRAM...: under an emulator, a processor of 2008 (no AVX) gets one sentence and status 1 from each
# program, and one with AVX2 runs it. Skipped (status 77) without the emulator.
set -euo pipefail
if ! command -v qemu-x86_64 >/dev/null; then
  echo "skipped: qemu-x86_64 (Debian: qemu-user) is not here"
  exit 77
fi
for program in "$@"; do
  status=0
  said=$(qemu-x86_64 -cpu Nehalem "$program" --help 2>&1) || status=$?
  echo "$program on Nehalem: status $status: $said"
  [[ $status -eq 1 ]]
  [[ $said =~ ^lockstep:\ this\ processor\ lacks\ .*avx2.*LOCKSTEP_CPU_ARCH=x86-64\ for\ every\ x86-64\ processor$ ]]
done
said=$(qemu-x86_64 -cpu Haswell "$1" --help 2>&1)
[[ $said == *--help* ]]
