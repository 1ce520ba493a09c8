#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace lockstep::testing {

/// A path in the temporary folder that nobody else has; whatever lies there goes with the object.
class TemporaryPath {
 public:
  TemporaryPath() {
    static std::atomic<int> next{0};
    path_ = std::filesystem::temp_directory_path() /
            ("lockstep-test-" + std::to_string(getpid()) + "-" + std::to_string(next++));
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
