#!/usr/bin/env bash
# run_readme_run.sh LOCKSTEP_RUN PROGRAM: the program's options do what the README says, and it learns.
set -euo pipefail
launcher=$1 program=$2
source "$(dirname "$0")/need_mnist.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
weights() { grep -o 'weights_sha256=.*' "$1"; }
common=(--lockstep 4 --max-steps 300)
"$program" "${common[@]}" --metrics run.jsonl >whole
"$launcher" --nproc_per_node=2 --nnodes=1 "$program" "${common[@]}" --checkpoint=run.safetensors --checkpoint_every=100 \
  --keep-checkpoints=2 >first
# Goes on after step 200, on another number of processes, which divide gradients and parameters.
"$program" "${common[@]}" --nproc 3 --zero=3 --checkpoint other.safetensors --resume run.step00000200.safetensors >rest
grep -q "resumed from 'run.step00000200.safetensors' at step 200 on 3 worker(s), saved on 2" rest
[ "$(weights whole)" = "$(weights first)" ]
[ "$(weights whole)" = "$(weights rest)" ]
[ "$(wc -l <run.jsonl)" -eq 300 ]
tail -n 1 whole
tail -n 1 whole | sed 's/.*test_accuracy=//' | awk '{exit !($1 > 0.9)}'
