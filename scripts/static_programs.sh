#!/usr/bin/env bash
# Builds gpt_train and mnist_train by preset `static`, strips them, and trains with gpt_train in a root folder that holds
# nothing but the program and a text: no library, no /proc, no /dev, no locale.
#
# scripts/static_programs.sh [--if-asked] [FOLDER]
#   FOLDER      where to build (default: build/static)
#   --if-asked  do nothing, and end with status 77, unless LOCKSTEP_TEST_BUILDS is 1
#
# Ends with status 1 if a program is larger than 15 MB, needs a shared library or does not train; 77 where no folder can be
# made the root (neither root nor user namespaces).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ "${1:-}" == --if-asked ]]; then
  shift
  if [[ "${LOCKSTEP_TEST_BUILDS:-0}" != 1 ]]; then
    echo "skipped: a build of its own takes minutes; LOCKSTEP_TEST_BUILDS=1 asks for it"
    exit 77
  fi
fi
build=${1:-$root/build/static}

cmake -S "$root" --preset static -B "$build" >"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
ninja -C "$build" gpt_train mnist_train >>"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }

empty=$build/empty-root
rm -rf "$empty"
mkdir -p "$empty"
for program in gpt_train mnist_train; do
  strip -o "$empty/$program" "$build/bin/$program"
  size=$(stat -c %s "$empty/$program")
  echo "$program: $size bytes"
  if ((size > 15000000)); then echo "$program is larger than 15 MB"; exit 1; fi
  if readelf -d "$empty/$program" | grep NEEDED; then echo "$program needs shared libraries"; exit 1; fi
done

enter=(chroot "$empty")
if ((EUID != 0)); then enter=(unshare --user --map-root-user chroot "$empty"); fi
status=0
"${enter[@]}" /nothing 2>/dev/null || status=$?
if ((status != 127)); then  # what chroot answers for a program that is not there
  echo "skipped: '${enter[*]}' is not allowed here"
  exit 77
fi
cp "$root/LICENSE" "$empty/text"
"${enter[@]}" /gpt_train --text /text --max-steps 20 --evaluate-every 20 --evaluate-windows 4 --sample 20 --out /model
ls -l "$empty/model"
