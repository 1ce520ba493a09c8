#!/usr/bin/env bash
# From nothing to a trained network: installs what is missing, builds, finds or fetches MNIST, and trains lenet on two
# processes with DistributedDataParallel. Asks nothing; needs no GPU. The last line printed is the result.
#
#   scripts/quickstart.sh [OPTIONS OF mnist_train...]
#
# Data: MNIST from $LOCKSTEP_DATA, else fetched by scripts/get_mnist.sh; if that cannot be done, Fashion-MNIST from the
# distribution's package dataset-fashion-mnist. LOCKSTEP_BUILD_DIR says where to build (default: build/quickstart).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${LOCKSTEP_BUILD_DIR:-$root/build/quickstart}
say() { echo "quickstart: $*"; }

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac

started=$SECONDS
say "installing what is missing"
"$root/scripts/setup.sh" --with-download

say "building mnist_train in $build"
# Only what the training needs. CUDA is left out: compiling its kernels takes longer than this training.
mkdir -p "$build"
log=$build/quickstart.log
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_BUILD_TESTS=OFF &&
  cmake --build "$build" --target mnist_train; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  say "the build failed; the whole log is $log" >&2
  exit 1
fi
say "built after $((SECONDS - started)) s"

if "$root/scripts/get_mnist.sh" --dir "$root/data/mnist"; then
  say "training on MNIST from ${LOCKSTEP_DATA:-$root/data/mnist}"
  data=(--dataset mnist --data-dir "$root/data/mnist" --epochs 3)
else
  say "MNIST could not be had here; training on Fashion-MNIST from the package dataset-fashion-mnist instead"
  "$root/scripts/setup.sh" --with-fashion
  data=(--dataset fashion-mnist --epochs 5)
fi

"$build/bin/mnist_train" --mode ddp --nproc 2 --device cpu --model lenet "${data[@]}" "$@"
