#pragma once

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>

namespace lockstep::testing {

/// A path in the temporary folder at which nothing lies; whatever is put there, and not beside it, goes with the
/// object. The name is drawn, not made of the process's number: numbers come round again, and a test that was killed
/// leaves its files.
class TemporaryPath {
 public:
  TemporaryPath() {
    std::random_device random;
    std::uint64_t drawn = random();
    drawn = drawn << 32 | random();
    path_ = std::filesystem::temp_directory_path() / fmt::format("lockstep-test-{:016x}", drawn);
  }
  ~TemporaryPath() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  std::string text() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// A fresh folder, removed with everything in it.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::testing
