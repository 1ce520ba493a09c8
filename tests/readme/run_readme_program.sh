#!/usr/bin/env bash
# run_readme_program.sh LOCKSTEP_RUN PROCESSES PROGRAM: the program must learn and must leave its weights.
set -euo pipefail
launcher=$1 processes=$2 program=$3
have_mnist=no
for folder in "${LOCKSTEP_DATA:-}/mnist" "${LOCKSTEP_DATA:-}" ~/.cache/lockstep/mnist; do
  if compgen -G "$folder/train-images*" >/dev/null; then have_mnist=yes; fi
done
if [ $have_mnist = no ]; then
  echo "skipped: MNIST is not here"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$launcher" --nproc-per-node "$processes" -- "$program" >output
test -s lenet.safetensors
lines=$(grep -c 'loss ' output)
last=$(tail -n 20 output | sed 's/.*loss //' | awk '{sum += $1} END {print sum / NR}')
echo "$lines steps, mean of the last 20 losses $last"
[ "$lines" -eq 938 ]
awk -v loss="$last" 'BEGIN {exit !(loss < 0.3)}'
