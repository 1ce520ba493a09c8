#pragma once

// A file that appears complete or not at all. For .cpp files only.

#include <cstddef>
#include <string>

#include "lockstep/core/posix.h"

namespace lockstep::nn::detail {

/// Writes to a temporary file beside `path`; commit() syncs it and gives it its name. Without commit() the destructor
/// removes it. Throws Error naming path and cause.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;
  std::string folder_;
  std::string temporary_;
  FileDescriptor descriptor_;
};

}  // namespace lockstep::nn::detail
