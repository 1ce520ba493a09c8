#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz) with Clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs
# each for some time, two at a time.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]        60 seconds, all targets
#
# Builds in build/fuzz. Each target starts from the seeds in tests/fuzz/corpus and keeps what it finds beyond them in
# build/fuzz/corpus, so later runs go on from there; LOCKSTEP_FUZZ_FRESH=1 starts anew. An input that fails is left in
# build/fuzz/findings, with the log that says how: run build/fuzz/tests/fuzz/fuzz_TARGET INPUT to see it again.
# Status: 0 nothing was found, 1 something was, 2 wrong usage, 77 no Clang with libFuzzer is here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
seconds=${1:-60}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: '$seconds' is no number of seconds; see scripts/fuzz.sh --help" >&2
  exit 2
fi
shift || true
targets=("$@")
all=(tests/fuzz/corpus/*)
all=("${all[@]##*/}")
if ((${#targets[@]} == 0)); then targets=("${all[@]}"); fi
for target in "${targets[@]}"; do
  if [[ ! -d tests/fuzz/corpus/$target ]]; then
    echo "fuzz: unknown target '$target'; there are: ${all[*]}" >&2
    exit 2
  fi
done

build=build/fuzz
mkdir -p "$build/findings"
probe=$build/probe
if ! command -v clang++ >/dev/null ||
  ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -x c++ -fsanitize=fuzzer,address - -o "$probe" 2>/dev/null; then
  echo "fuzz: skipped: no Clang with libFuzzer is here; scripts/setup.sh --with-fuzz installs it" >&2
  exit 77
fi
rm -f "$probe"

started=$SECONDS
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
fi
if ! { cmake --preset fuzz && cmake --build "$build" --target "${targets[@]/#/fuzz_}"; } >"$build/build.log" 2>&1; then
  grep -A 20 -E 'FAILED|CMake Error|error:' "$build/build.log" | head -n 60 >&2 || tail -n 40 "$build/build.log" >&2
  exit 1
fi
echo "fuzz: built in $((SECONDS - started)) s"

if [[ ${LOCKSTEP_FUZZ_FRESH:-0} == 1 ]]; then rm -rf "$build/corpus"; fi

# One target; its log is the only output.
fuzz_one() {
  mkdir -p "$build/corpus/$1"
  "$build/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$1-" "$build/corpus/$1" "tests/fuzz/corpus/$1" >"$build/$1.log" 2>&1
}

failed=0
report() {
  local target=$1 pid=$2 log=$build/$1.log
  if wait "$pid"; then
    local executions coverage
    executions=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log")
    coverage=$(sed -nE 's/.* cov: ([0-9]+) ft: ([0-9]+) corp: ([0-9]+).*/\1 edges, \2 features, \3 inputs/p' "$log" | tail -n 1)
    echo "fuzz: $target: clean, $executions executions in $seconds s, $coverage"
  else
    failed=1
    echo "fuzz: $target: FAILED; log $log, inputs in $build/findings" >&2
    grep -m 1 -A 12 -E 'ERROR:|runtime error:|libFuzzer: ' "$log" >&2 || tail -n 20 "$log" >&2
  fi
}

for ((i = 0; i < ${#targets[@]}; i += 2)); do
  fuzz_one "${targets[i]}" &
  first=$!
  second=
  if ((i + 1 < ${#targets[@]})); then
    fuzz_one "${targets[i + 1]}" &
    second=$!
  fi
  report "${targets[i]}" "$first"
  if [[ -n $second ]]; then report "${targets[i + 1]}" "$second"; fi
done
exit "$failed"
