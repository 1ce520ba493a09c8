#!/usr/bin/env bash
# Do the published hashes hold whatever the compiler and however it optimises? Builds mnist_train and gpt_train by GCC and
# by Clang at -O1, -O2 and -O3, with shared and with static libraries, runs what tests/apps/published_hashes.txt
# publishes, on one process and on three, and compares weights, and the losses of all steps to the bit. So it does with a
# build for aarch64, which QEMU's user-mode emulator runs here (slowly: minutes a model).
#
# scripts/build_matrix.sh [--if-asked] [FOLDER [ROW...]]
#   FOLDER      where to build (default: build/matrix); what is there is built upon
#   ROW         compiler:level:libraries, for instance clang++:O2:static or aarch64-linux-gnu-g++:O3:static (default: all
#               there are; takes an hour or so)
#   --if-asked  do nothing, and end with status 77, unless LOCKSTEP_TEST_BUILDS is 1
#
# Ends with status 1 if a row differs, 77 if nothing could be compared since MNIST is not here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ "${1:-}" == --if-asked ]]; then
  shift
  if [[ "${LOCKSTEP_TEST_BUILDS:-0}" != 1 ]]; then
    echo "skipped: a build for each compiler takes long; LOCKSTEP_TEST_BUILDS=1 asks for them"
    exit 77
  fi
fi
work=${1:-$root/build/matrix}
if (($# > 0)); then shift; fi
rows=("$@")
if ((${#rows[@]} == 0)); then
  for compiler in g++ clang++; do
    if ! command -v "$compiler" >/dev/null; then
      echo "$compiler is not here: its rows are left out"
      continue
    fi
    for level in O1 O2 O3; do rows+=("$compiler:$level:shared" "$compiler:$level:static"); done
  done
  rows+=(aarch64-linux-gnu-g++:O3:static)
fi
data=${LOCKSTEP_DATA:-}
if [[ ! -e "$data/mnist/train-images-idx3-ubyte.gz" && ! -e "$data/mnist/train-images-idx3-ubyte" ]]; then
  echo "skipped: MNIST is not in LOCKSTEP_DATA ('$data')"
  exit 77
fi

mkdir -p "$work"
cd "$root"  # gpt_train's text is named from here

# published MODEL: the hash that the model's weights must have.
published() { sed -n "s/^$1 | //p" "$root/tests/apps/published_hashes.txt"; }

# weights COMMAND...: the hash at the end of what a program prints.
weights() { timeout 1800 "$@" 2>"$work/stderr" | sed -n 's/.*weights_sha256=\([0-9a-f]*\).*/\1/p'; }

# run_model BUILD MODEL METRICS [OPTION...]
run_model() {
  local bin=$1/bin model=$2 metrics=$3
  shift 3
  rm -f "$metrics"
  if [[ $model == gpt ]]; then
    weights "${emulator[@]}" "$bin/gpt_train" --text LICENSE --lockstep 8 --batch-size 8 --max-steps 3 --lr 1e-3 --dropout 0.1 \
      --evaluate-every 3 --evaluate-windows 4 --metrics "$metrics" "$@"
  else
    weights "${emulator[@]}" "$bin/mnist_train" --dataset mnist --lockstep 8 --batch-size 64 --max-steps 12 --model "$model" \
      --metrics "$metrics" "$@"
  fi
}

# run_three BUILD MODEL METRICS: the same on three processes. An emulated program cannot start others of its kind, so there
# each rank is started from here.
run_three() {
  if ((${#emulator[@]} == 0)); then
    run_model "$@" --mode ddp --nproc 3
    return
  fi
  (
    export WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    for rank in 1 2; do
      RANK=$rank LOCAL_RANK=$rank run_model "$1" "$2" "$3.$rank" --mode ddp >"$work/rank$rank" &
    done
    RANK=0 LOCAL_RANK=0 run_model "$@" --mode ddp
    wait
  )
}

losses() { grep -o '"loss_hex": *"[^"]*"' "$1" || true; }

status=0
table=""
for row in "${rows[@]}"; do
  IFS=: read -r compiler level libraries <<<"$row"
  build=$work/${compiler//+/x}-$level-$libraries
  shared=ON
  if [[ $libraries == static ]]; then shared=OFF; fi
  emulator=()
  target=(-DCMAKE_CXX_COMPILER="$compiler")
  if [[ $compiler == aarch64-* ]]; then
    "$root/scripts/aarch64_root.sh" "$work/aarch64" >"$work/aarch64.log" 2>&1 || {
      echo "$row is left out: $(tail -n 1 "$work/aarch64.log")"
      continue
    }
    emulator=(qemu-aarch64 -L "$work/aarch64/root")
    target=(-DCMAKE_TOOLCHAIN_FILE="$work/aarch64/toolchain.cmake")
  fi
  cmake -S "$root" -B "$build" -G Ninja "${target[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-$level -DNDEBUG" -DBUILD_SHARED_LIBS=$shared -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_BUILD_TESTS=OFF \
    -DLOCKSTEP_ONEDNN=OFF -DLOCKSTEP_BLAS=OFF -DLOCKSTEP_GLOO=OFF -DLOCKSTEP_MPI=OFF -DLOCKSTEP_WERROR=OFF >"$build.log" 2>&1 ||
    { cat "$build.log"; exit 1; }
  ninja -C "$build" mnist_train gpt_train >>"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
  for model in lenet lenet-bn cnn mlp gpt; do
    one=$(run_model "$build" "$model" "$build-$model.jsonl") || true
    three=$(run_three "$build" "$model" "$build-$model-3.jsonl") || true
    losses "$build-$model.jsonl" >"$work/losses"
    reference=$work/losses-$model
    if [[ ! -s $reference || $row == "${rows[0]}" ]]; then cp "$work/losses" "$reference"; fi
    verdict=equal
    if [[ -z $one || $one != "$(published "$model")" ]]; then
      verdict="weights differ: ${one:-none}"
    elif [[ $three != "$one" ]]; then
      verdict="weights of three processes differ: ${three:-none}"
    elif [[ ! -s $work/losses ]] || ! cmp -s "$work/losses" "$reference"; then
      verdict="a loss differs from that of ${rows[0]}"
    fi
    if [[ $verdict != equal ]]; then status=1; fi
    table+="$(printf '%-26s %-9s %s' "$row" "$model" "$verdict")"$'\n'
    echo "$row $model: $verdict"
  done
done
printf '\n%s' "$table"
exit $status
