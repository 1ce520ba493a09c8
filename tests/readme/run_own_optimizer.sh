#!/usr/bin/env bash
# run_own_optimizer.sh PROGRAM: the program of docs/own_optimizers.md must learn, and must leave the same bits on one
# process and on two.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for kind in "" --lamb; do
  for processes in 1 2; do
    # shellcheck disable=SC2086
    "$program" $kind --lockstep 4 --nproc "$processes" --epochs 30 --batch-size 32 \
      --metrics "metrics.$processes" >"output.$processes"
    grep -o 'weights_sha256=[0-9a-f]*' "output.$processes" >"hash.$processes"
    test -s "hash.$processes"
  done
  cmp hash.1 hash.2
  first=$(head -n 1 metrics.1 | sed 's/.*"loss": *\([0-9.e-]*\).*/\1/')
  last=$(tail -n 1 metrics.1 | sed 's/.*"loss": *\([0-9.e-]*\).*/\1/')
  echo "${kind:---lars}: loss from $first to $last, $(cat hash.1)"
  awk -v first="$first" -v last="$last" 'BEGIN {exit !(last < 0.5 * first)}'
  rm metrics.1 metrics.2
done
