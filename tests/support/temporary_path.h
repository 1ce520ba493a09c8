#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

namespace lockstep::testing {

/// A path in the temporary folder at which nothing lies; whatever is put there goes with the object. The name is drawn,
/// not made of the process's number: numbers come round again, and a test that was killed leaves its files.
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

}  // namespace lockstep::testing
