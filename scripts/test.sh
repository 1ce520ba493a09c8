#!/usr/bin/env bash
# Installs what is missing, builds everything, and runs every test. Asks nothing; tests that need a GPU are reported as
# skipped where there is none.
#
#   scripts/test.sh [PRESET...]
#
# Presets: cpu, cuda, emulated, asan, ubsan, tsan (CMakePresets.json), each built in build/PRESET; asan_core, of asan the
# tests of libraries alone; and tsan_core, of tsan those of core and autograd. Without any, LOCKSTEP_TEST_PRESETS, else cuda where nvcc is found and cpu where it
# is not. LOCKSTEP_JOBS: compilers and tests at a time (default: cores).
# Real data is taken from LOCKSTEP_DATA, or data/mnist if scripts/get_mnist.sh has put it there.
# Status: 0 all passed, 1 something failed, 2 wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=${LOCKSTEP_JOBS:-$(nproc)}
say() { echo "test: $*"; }

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac

if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  export PATH=$PATH:/usr/local/cuda/bin
fi
read -r -a presets <<<"${*:-${LOCKSTEP_TEST_PRESETS:-}}"
if ((${#presets[@]} == 0)); then
  if command -v nvcc >/dev/null; then presets=(cuda); else presets=(cpu); fi
fi
for preset in "${presets[@]}"; do
  case "$preset" in
    cpu | cuda | emulated | asan | asan_core | ubsan | tsan | tsan_core) ;;
    *)
      echo "test: unknown preset '$preset'; see scripts/test.sh --help" >&2
      exit 2
      ;;
  esac
done

scripts/setup.sh
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
fi

passed=0 failed=0 skipped=0 report=() junits=()
for preset in "${presets[@]}"; do
  started=$SECONDS
  say "building preset $preset"
  folder=build/${preset%_core}
  log=$folder/build.log
  mkdir -p "$folder"
  # Of presets for sanitizers only what they test is built: CMakePresets.json names it.
  if ! { cmake --preset "${preset%_core}" && cmake --build --preset "$preset" -j "$jobs"; } >"$log" 2>&1; then
    grep -A 20 -E 'FAILED|CMake Error|error:' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
    report+=("$preset: the build failed; see $log")
    failed=$((failed + 1))
    continue
  fi
  sed -n '/what was found/,/^-- Configuring done/{/Configuring done/!p}' "$log"
  built=$((SECONDS - started))
  say "testing preset $preset"
  junit=$root/$folder/tests_$preset.xml
  rm -f "$junit"
  status=0
  ctest --preset "$preset" -j "$jobs" --output-on-failure --no-tests=error --output-junit "$junit" || status=$?
  # The counts are attributes of the first element, on lines of their own.
  [[ -s $junit ]] || echo '<testsuite tests="0" failures="0" disabled="0" skipped="0">' >"$junit"
  count() { sed -nE "1,/>/s/.*\\b$1=\"([0-9]+)\".*/\\1/p" "$junit" | head -n 1; }
  tests=$(count tests) failures=$(count failures) skips=$(($(count skipped) + $(count disabled)))
  junits+=("$junit")
  passed=$((passed + tests - failures - skips))
  failed=$((failed + failures))
  skipped=$((skipped + skips))
  if ((status != 0 && failures == 0)); then failed=$((failed + 1)); fi
  report+=("$preset: $((tests - failures - skips)) passed, $failures failed, $skips skipped; built in $built s, tested in $((SECONDS - started - built)) s")
done

# Again at the end, where whoever reads only the end of a log finds it: what the failed tests printed last.
for junit in ${junits[@]+"${junits[@]}"}; do
  awk -v file="${junit#"$root"/}" '
    function show(i) {
      if (!failing) return
      print "test: failed, in " file ": " name
      for (i = count > 40 ? count - 40 : 0; i < count; ++i) print "  " line[i]
    }
    /<testcase / { show(); failing = /status="fail"/; name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name); count = 0 }
    { line[count++] = $0 }
    END { show() }' "$junit"
done

echo
for line in "${report[@]}"; do say "$line"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
