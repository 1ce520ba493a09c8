#pragma once

// Files for tests: IDX and gzip bytes, images.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/image.h"
#include "tests/support/temporary_path.h"

namespace lockstep::testing {

using Bytes = std::vector<std::uint8_t>;

/// Sets or (nullptr) clears an environment variable for its lifetime.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedEnv() { set(old_ ? old_->c_str() : nullptr); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

/// Drops root's right to read every file for its lifetime; false if that is not possible.
class OrdinaryUser {
 public:
  OrdinaryUser() : was_root_(::geteuid() == 0), ordinary_(!was_root_ || ::seteuid(kNobody) == 0) {}
  ~OrdinaryUser() {
    if (was_root_ && ordinary_ && ::seteuid(0) != 0) std::abort();
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
  explicit operator bool() const { return ordinary_; }

 private:
  static constexpr uid_t kNobody = 65534;
  bool was_root_;
  bool ordinary_;
};

inline void write_file(const std::filesystem::path& path, const Bytes& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

/// An IDX file of unsigned bytes whose header claims `dims`, followed by `values`.
inline Bytes idx_bytes(const std::vector<std::uint32_t>& dims, const Bytes& values, std::uint8_t type = 8) {
  Bytes bytes = {0, 0, type, static_cast<std::uint8_t>(dims.size())};
  for (const std::uint32_t dim : dims)
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(dim >> shift));
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

/// 0, step, 2 * step, ... modulo `modulus`.
inline Bytes ramp(std::size_t count, int modulus = 256, int step = 1) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(i * static_cast<std::size_t>(step) % static_cast<std::size_t>(modulus));
  return bytes;
}

/// `bytes` as one gzip member. Defined in data_files.cpp.
Bytes gzip(const Bytes& bytes);
/// PNG or JPEG (quality 95) files. Defined in data_files.cpp.
void write_png(const std::filesystem::path& path, const data::Image& image);
void write_jpeg(const std::filesystem::path& path, const data::Image& image);

/// The training and test files of a set of `count` images of side x side each, in `folder`.
inline void write_mnist(const std::filesystem::path& folder, std::uint32_t count, std::uint32_t side = 28) {
  for (const char* prefix : {"train", "t10k"}) {
    write_file(folder / (std::string(prefix) + "-images-idx3-ubyte"),
               idx_bytes({count, side, side}, ramp(std::size_t{count} * side * side, 251)));
    write_file(folder / (std::string(prefix) + "-labels-idx1-ubyte"), idx_bytes({count}, ramp(count, 10, 3)));
  }
}

}  // namespace lockstep::testing
