#!/usr/bin/env bash
# Fetches the four MNIST files, checks them, and puts them into a folder. Does nothing if they are there already.
#
#   scripts/get_mnist.sh [--dir DIR]
#
#   --dir DIR   where to put them (default: data/mnist in the repository)
#
# Files found under $LOCKSTEP_DATA (its mnist/ or itself) are copied instead of fetched. What is fetched is compared with
# the md5 sums of the uncompressed files, and moved into place only when it is right.
# LOCKSTEP_MNIST_MIRRORS, a list of URLs separated by blanks (https://, http:// or file://), replaces the built-in list.
# Status: 0 all four files are in place, 1 they could not be had, 2 wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=$root/data/mnist
say() { echo "get_mnist: $*"; }
fail() {
  echo "get_mnist: $*" >&2
  exit 1
}

while (($# > 0)); do
  case "$1" in
    --dir)
      [[ $# -ge 2 && -n "$2" ]] || { echo "get_mnist: --dir needs a folder" >&2; exit 2; }
      directory=$2
      shift
      ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "get_mnist: unknown argument '$1'; see scripts/get_mnist.sh --help" >&2
      exit 2
      ;;
  esac
  shift
done

files=(train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte)
declare -A sums=(
  [train-images-idx3-ubyte]=6bbc9ace898e44ae57da46a324031adb
  [train-labels-idx1-ubyte]=a25bea736e30d166cdddb491f175f624
  [t10k-images-idx3-ubyte]=2646ac647ad5339dbf082846283269ea
  [t10k-labels-idx1-ubyte]=27ae3e4e09519cfbb04c329615203637)
read -r -a mirrors <<<"${LOCKSTEP_MNIST_MIRRORS:-https://ossci-datasets.s3.amazonaws.com/mnist \
https://storage.googleapis.com/cvdf-datasets/mnist https://yann.lecun.com/exdb/mnist}"
largest=$((16 * 1024 * 1024)) # bytes; the largest file has 9.9 million
seconds=120                   # for one file from one mirror

for tool in md5sum gzip mktemp; do
  command -v "$tool" >/dev/null || fail "'$tool' is missing; install the packages coreutils and gzip"
done

# True if the file, raw or gzip, has the content that its name promises.
valid() {
  local path=$1 name=$2 sum
  [[ -f "$path" && -r "$path" ]] || return 1
  if [[ "$path" == *.gz ]]; then
    # One byte more than any of the files has: a bomb is cut off, and its sum is wrong.
    sum=$(gzip -dc -- "$path" 2>/dev/null | head -c 47040017 | md5sum) || return 1
  else
    sum=$(md5sum <"$path")
  fi
  [[ "${sum%% *}" == "${sums[$name]}" ]]
}

# Prints the path of a valid copy of the file in a folder.
find_in() {
  local folder=$1 name=$2 candidate
  for candidate in "$name" "$name.gz" "${name/-idx/.idx}" "${name/-idx/.idx}.gz"; do
    if valid "$folder/$candidate" "$name"; then
      echo "$folder/$candidate"
      return 0
    fi
  done
  return 1
}

fetch() {
  local url=$1 target=$2
  case "$url" in
    file://*)
      cat <"${url#file://}" >"$target"
      ;;
    *)
      if command -v curl >/dev/null; then
        curl --fail --silent --show-error --location --proto '=http,https' --connect-timeout 8 --max-time "$seconds" \
          --max-filesize "$largest" --retry 1 --retry-delay 1 --output "$target" -- "$url"
      elif command -v wget >/dev/null; then
        timeout "$((2 * seconds))" wget --quiet --tries=3 --waitretry=1 --timeout=20 --output-document="$target" "$url"
      else
        echo "neither curl nor wget is installed" >&2
        return 1
      fi
      ;;
  esac
}

missing=()
for name in "${files[@]}"; do
  find_in "$directory" "$name" >/dev/null || missing+=("$name")
done
if ((${#missing[@]} == 0)); then
  say "MNIST is in $directory"
  exit 0
fi

mkdir -p -- "$directory" 2>/dev/null || fail "cannot make the folder '$directory'; choose another with --dir"
# In the target folder, so that moving into place is one rename.
work=$(mktemp -d -- "$directory/.get_mnist.XXXXXX" 2>/dev/null) || fail "cannot write to '$directory'; choose another folder with --dir"
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The first valid copy of one file, as $work/NAME or $work/NAME.gz.
obtain() {
  local name=$1 folder found mirror
  if [[ -n "${LOCKSTEP_DATA:-}" ]]; then
    for folder in "$LOCKSTEP_DATA/mnist" "$LOCKSTEP_DATA"; do
      if found=$(find_in "$folder" "$name"); then
        if [[ "$found" == *.gz ]]; then cat <"$found" >"$work/$name.gz"; else cat <"$found" >"$work/$name"; fi
        say "$name: copied from $folder"
        return 0
      fi
    done
  fi
  for mirror in "${mirrors[@]}"; do
    if ! fetch "${mirror%/}/$name.gz" "$work/$name.gz" 2>"$work/log"; then
      tried+=("$mirror: $(tail -n 1 "$work/log" | tr -d '\r')")
    elif ! valid "$work/$name.gz" "$name"; then
      tried+=("$mirror: $name.gz has a wrong checksum")
    else
      say "$name: fetched from $mirror"
      return 0
    fi
    rm -f -- "$work/$name.gz"
  done
  return 1
}

for name in "${missing[@]}"; do
  tried=()
  if ! obtain "$name"; then
    reasons=$(printf '%s; ' "${tried[@]}")
    fail "no mirror gave $name (${reasons%; }); connect to the network, set LOCKSTEP_DATA to a folder with mnist/, or use Fashion-MNIST (package dataset-fashion-mnist)"
  fi
done
for name in "${missing[@]}"; do
  # What lay there under any of the names was wrong, and would be found first.
  for stale in "$name" "$name.gz" "${name/-idx/.idx}" "${name/-idx/.idx}.gz"; do
    [[ -e "$work/$stale" ]] || rm -f -- "$directory/$stale"
  done
  for ready in "$name" "$name.gz"; do
    [[ ! -e "$work/$ready" ]] || mv -f -- "$work/$ready" "$directory/$ready"
  done
done
say "MNIST is in $directory"
