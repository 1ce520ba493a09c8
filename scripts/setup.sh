#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that lockstep needs and that are missing. Asks nothing.
#
#   scripts/setup.sh [--with-fashion] [--with-download] [--with-mpi] [--with-fuzz] [--with-emulator]
#                    [--with-aarch64]
#
#   --with-fashion    also the Fashion-MNIST data set as a package (dataset-fashion-mnist)
#   --with-download   also curl, for scripts/get_mnist.sh
#   --with-mpi        also Open MPI (libopenmpi-dev, openmpi-bin), for --backend mpi
#   --with-fuzz       also Clang with libFuzzer, for scripts/fuzz.sh
#   --with-emulator   also QEMU's user-mode emulator, for the tests of processors without AVX2
#   --with-aarch64    also a cross compiler and the emulator, for scripts/aarch64_root.sh
#
# Works as root, or through sudo. A CUDA toolkit is never installed; one that is there is used.
# Status: 0 all there, 1 something required could not be installed, 2 wrong usage.
set -euo pipefail

required=(build-essential cmake ninja-build libeigen3-dev zlib1g-dev libssl-dev libcli11-dev libspdlog-dev libfmt-dev
  nlohmann-json3-dev libgtest-dev libstb-dev)
# Without one of these lockstep still builds, slower or with fewer back ends.
optional=(libdnnl-dev libopenblas-dev libgloo-dev)

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

while (($# > 0)); do
  case "$1" in
    --with-fashion) required+=(dataset-fashion-mnist) ;;
    --with-download) required+=(ca-certificates curl) ;;
    --with-mpi) required+=(libopenmpi-dev openmpi-bin) ;;
    # Where the runtimes are a package of their own, clang only recommends it.
    --with-fuzz) required+=(clang) optional+=(libclang-rt-14-dev) ;;
    --with-emulator) required+=(qemu-user) ;;
    --with-aarch64) required+=(g++-aarch64-linux-gnu qemu-user) ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "setup: unknown option '$1'; see scripts/setup.sh --help" >&2; exit 2 ;;
  esac
  shift
done

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }
available() { [[ "$(apt-cache policy "$1" 2>/dev/null)" =~ Candidate:\ [0-9] ]]; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  fail "no apt-get here; install what these Debian packages hold, then build with CMake: ${required[*]} ${optional[*]}"
fi

missing=()
for package in "${required[@]}" "${optional[@]}"; do
  installed "$package" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "all packages are installed"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  else
    fail "these packages are missing, and this is neither root nor a user with password-free sudo; run: sudo apt-get install ${missing[*]}"
  fi
fi

apt() {
  local try
  for try in 1 2 3; do
    if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -q -y \
      -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null; then
      return 0
    fi
    say "apt-get $1 failed (try $try of 3)"
    sleep $((try * 3))
  done
  return 1
}

log=$(mktemp "${TMPDIR:-/tmp}/lockstep-setup.XXXXXX")
if ! apt update >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  say "the package lists could not be refreshed; going on with those that are here"
fi

install=()
for package in "${missing[@]}"; do
  if available "$package"; then
    install+=("$package")
  elif [[ " ${optional[*]} " == *" $package "* ]]; then
    say "$package is not available on this release; lockstep is built without it"
  else
    fail "$package is not available from this machine's package sources; on Ubuntu enable 'universe', then run this again"
  fi
done
if ((${#install[@]} > 0)); then
  say "installing ${install[*]}"
  apt install --no-install-recommends "${install[@]}" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    fail "apt-get install failed; the whole log is $log"
  }
fi
rm -f "$log"
say "done"
