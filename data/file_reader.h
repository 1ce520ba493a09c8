#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep::data {

/// A regular file read front to back and, if its first bytes are gzip's, decompressed on the way (RFC 1952, checksums
/// included; several members in a row count as one). Memory use is fixed, whatever the file claims.
/// Every error is an Error that names the file, the offset, what was expected and what was found.
class FileReader {
 public:
  /// Throws Error if the path is missing, unreadable, or no regular file (a directory, a pipe).
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// Fills `out` with the next bytes of content and returns how many; fewer than asked only at the end of the content,
  /// and then the checksum has been verified. Throws Error for a truncated or damaged gzip file or a failing read.
  std::size_t read(std::span<std::uint8_t> out);

  const std::filesystem::path& path() const;
  bool compressed() const;
  /// Bytes on disk.
  std::uint64_t file_size() const;
  /// Bytes of content delivered so far.
  std::uint64_t offset() const;
  /// The most bytes of content that a file of this size can hold: its size, or deflate's limit of 1032 times that.
  std::uint64_t max_content() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
