#pragma once

// A file that appears complete or not at all. For .cpp files only.

#include <sys/stat.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/core/own_process.h"
#include "lockstep/core/posix.h"

namespace lockstep {

/// The longest name of a file, in bytes.
inline constexpr std::size_t kLongestName = 255;

/// `name`, or if that is longer than `bytes`, which are 20 or more: its beginning, and a hash of the whole.
std::string shortened(const std::string& name, std::size_t bytes);

/// Note [Atomic files]
/// The bytes go to a file without a name (O_TMPFILE), so that a process that is killed leaves nothing; commit() syncs
/// it, gives it a temporary name beside `path` and renames it. Where the file system has no files without names, it
/// bears the temporary name from the start. That name is random, so that processes of different containers never share
/// one, and the file is locked (flock) as long as it is written: a temporary file of `path` that nobody locks was left
/// by a process that is gone, and the next AtomicFile of the same path removes it. The temporary name is ".NAME.H.tmp"
/// with the file's own name and 16 hexadecimal digits; of a long name only the beginning is taken, and a hash for the
/// rest, so that every name that a file can have can be written. No other name is ever taken for a temporary one.
///
/// A symbolic link is followed: what it points at is replaced, not the link. As the kernel would (protected_symlinks),
/// this refuses one of another user in a sticky folder that everybody may write, such as /tmp, unless that user owns
/// the folder. A file that is replaced hands its permissions on, and its owner if this process may do that. What is no
/// regular file (a device, a pipe, a folder) is refused and never replaced.
class AtomicFile {
 public:
  /// `named`: it has its temporary name from the start, under which other processes can open it. Throws Error naming
  /// path and cause.
  explicit AtomicFile(const std::string& path, bool named = false);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Takes the disk's space for so many bytes, where the file system can. Throws Error if there is too little.
  void reserve(std::size_t bytes);
  /// The same, but false if there is too little.
  bool try_reserve(std::size_t bytes);
  void write(const void* data, std::size_t bytes);
  /// Over what was written before.
  void write_at(std::size_t offset, const void* data, std::size_t bytes);
  /// Makes it so long; what was not written is zeros.
  void resize(std::size_t bytes);
  /// Removes temporary files in `folder` that nobody writes, of files whose names `is_one` accepts; a long name comes
  /// to it shortened.
  static void remove_leftovers(const std::string& folder, const std::function<bool(std::string_view name)>& is_one);
  const std::string& temporary() const { return temporary_; }  ///< its name before commit(); may be empty
  /// Without it the destructor removes what was written.
  void commit();
  /// Does what commit() will do, but for the last step, of which it asks the system whether it is allowed. Throws Error
  /// as commit() would.
  void rehearse();

 private:
  [[noreturn]] void fail(int error) const;
  std::string temporary_name() const;
  void take_temporary_name();
  void take_over(const struct stat& old) const;

  OwnProcess made_in_;
  std::string path_;
  std::string folder_;
  std::string file_;
  std::string temporary_;  ///< its present name; empty if it has none
  FileDescriptor descriptor_;
  std::size_t size_ = 0;  ///< that it will have, as far as is known
};

}  // namespace lockstep
