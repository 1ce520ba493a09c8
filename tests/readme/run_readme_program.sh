#!/usr/bin/env bash
# run_readme_program.sh LOCKSTEP_RUN PROCESSES PROGRAM: the program must learn and must leave its weights.
set -euo pipefail
launcher=$1 processes=$2 program=$3
source "$(dirname "$0")/need_mnist.sh"
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
