#!/usr/bin/env bash
# Checks lockstep on a machine with a GPU, offline, and writes what it found as gpu-DEVICE-DATE.md and .json. What matters
# most comes first: trainings with the CPU's bits, the CUDA tests, loss curves of every mode, the same bits in lockstep
# mode, graphs, two ranks on one GPU, ranks that are stopped or killed, throughput beside PyTorch in the same run; then
# time to 99 %, compute-sanitizer, ten minutes of the same training. Every check has a time limit, and one that fails does
# not keep the others from running.
#
#   scripts/gpu_check.sh [OPTIONS]
#   scripts/gpu_check.sh --package DIR|FILE.tar.gz [--build DIR] [--with-data DIR]
#   scripts/gpu_check.sh --merge A.json B.json... [--out DIR]
#
# Without --package it runs the checks: in a source tree with the preset cuda, which it builds if there is a compiler and
# nvcc; with --build from that folder as it is; in a package, from what lies in it. Without a device it is a dry run.
# --package builds and packs what a GPU machine needs that has no compiler: unpack it there and run its gpu_check.sh.
#
#   --data DIR        MNIST (default: LOCKSTEP_DATA; else made-up images, and no time to 99 %)
#   --out DIR         where to write (default: docs/validation, in a package: report)
#   --sections A,B    of portable,tests,curves,hashes,graphs,shared-gpu,faults,speed,time,kernels,memcheck,speed-rest,
#                     initcheck,synccheck,racecheck,soak; default: all, in this order
#   --budget SECONDS  for everything; what then has no time is written down as not run
#   --dry-run         everything that needs no device
#   --merge           makes one report of several runs of the same device and commit
#   --with-data DIR   MNIST's four files into the package
#
# The machine needs python3; with PyTorch for the comparison. CUDA's libraries (cuBLASLt, cuDNN, NCCL) are taken from the
# nvidia wheels that this python3 sees, LOCKSTEP_CUDA_LIBRARY_PATH, or the system. PYTHON names another python3.
# Status: 0 nothing failed, 1 something did, 2 wrong usage.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -f $here/programs.json ]]; then root=$here checks=$here/gpu_check; else root=$(dirname "$here") checks=$here/gpu_check; fi
python=${PYTHON:-python3}
say() { echo "gpu_check: $*"; }
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}

package="" build="" mnist="" arguments=()
while (($#)); do
  case "$1" in
    -h | --help) usage 0 ;;
    --package | --build | --with-data)
      if (($# < 2)); then usage 2 >&2; fi
      case "$1" in
        --package) package=$2 ;;
        --build) build=$2 ;;
        *) mnist=$2 ;;
      esac
      shift 2
      ;;
    *)
      arguments+=("$1")
      shift
      ;;
  esac
done
# nvcc may be in the path by a link of its own, without compute-sanitizer beside it.
if [[ -d /usr/local/cuda/bin ]]; then export PATH=$PATH:/usr/local/cuda/bin; fi
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  export CMAKE_CUDA_COMPILER_LAUNCHER=${CMAKE_CUDA_COMPILER_LAUNCHER:-ccache}
fi

# Configures and builds; all but the last lines of a failure go to the log.
build_in() {
  local folder=$1 log=$1/gpu_check.log
  shift
  mkdir -p "$folder"
  say "building in $folder"
  if ! { cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON -DLOCKSTEP_BUILD_BENCH=ON "$@" &&
    cmake --build "$folder" -j "${LOCKSTEP_JOBS:-$(nproc)}" --target gpu_check; } >"$log" 2>&1; then
    grep -A 20 -E 'FAILED|CMake Error|error:' "$log" | head -n 40 >&2 || tail -n 40 "$log" >&2
    say "the build failed; see $log" >&2
    exit 1
  fi
}

if [[ -n $package ]]; then
  build=${build:-$root/build/gpu-package}
  # Few libraries to carry along: what the CPU could use better is left out. Whatever lies in lib/ comes first.
  build_in "$build" -DBUILD_SHARED_LIBS=ON -DLOCKSTEP_ONEDNN=OFF -DLOCKSTEP_BLAS=OFF -DLOCKSTEP_MPI=OFF \
    -DLOCKSTEP_GLOO=OFF '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib;$ORIGIN'
  exec "$python" "$checks/pack.py" --root "$root" --build "$build" --package "$package" ${mnist:+--data "$mnist"}
fi

if [[ -z $build && ! -f $root/programs.json && " ${arguments[*]} " != *" --merge "* ]]; then
  build=$root/build/cuda
  if command -v nvcc >/dev/null && command -v cmake >/dev/null; then build_in "$build"; fi
fi
exec "$python" "$checks" --root "$root" ${build:+--build "$build"} "${arguments[@]}"
