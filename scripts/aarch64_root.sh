#!/usr/bin/env bash
# Makes a folder for building lockstep for aarch64 on another machine: what it needs of Debian's arm64 packages, unpacked
# (nothing is installed), and a toolchain file for CMake. Debian or Ubuntu with its package lists' servers in reach, the
# cross compiler and QEMU's user-mode emulator (scripts/setup.sh --with-aarch64); root is not needed.
#
#   scripts/aarch64_root.sh FOLDER
#
#   scripts/aarch64_root.sh build/aarch64
#   cmake -S . -B build/aarch64/cpu -G Ninja --toolchain build/aarch64/toolchain.cmake -DBUILD_SHARED_LIBS=OFF
#   qemu-aarch64 -L build/aarch64/root build/aarch64/cpu/bin/mnist_train ...
#
# Status: 0 it is there (made now or before), 1 the packages could not be had, 77 cross compiler or emulator are missing.
set -euo pipefail

if (($# != 1)) || [[ "$1" == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
for program in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg; do
  if ! command -v "$program" >/dev/null; then
    echo "skipped: $program is not here (scripts/setup.sh --with-aarch64)"
    exit 77
  fi
done

mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [[ -e $folder/toolchain.cmake ]]; then exit 0; fi

packages=(libfmt-dev libspdlog-dev libssl-dev zlib1g-dev libcli11-dev nlohmann-json3-dev libeigen3-dev libstb-dev
  libgtest-dev libstdc++6)
# Lists and downloads of its own, so that what is installed here and the lists of this machine stay as they are.
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/root"
: >"$folder/apt/status"
apt=(apt-get -q -o "Dir::State=$folder/apt" -o "Dir::State::status=$folder/apt/status" -o "Dir::Cache=$folder/apt"
  -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" install --download-only --no-install-recommends -y "${packages[@]}"
for package in "$folder"/apt/archives/*.deb; do
  case "$(basename "$package")" in
    libc6-dev_* | linux-libc-dev_* | libcrypt-dev_*) ;;  # the cross compiler has its own
    *) dpkg -x "$package" "$folder/root" ;;
  esac
done
# OpenSSL's headers of one architecture lie in a folder that only a compiler of that architecture's own looks into.
cp "$folder"/root/usr/include/aarch64-linux-gnu/openssl/*.h "$folder/root/usr/include/openssl/"

cat >"$folder/toolchain.cmake.new" <<EOT
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH "$folder/root")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "$folder/root")
EOT
mv "$folder/toolchain.cmake.new" "$folder/toolchain.cmake"
