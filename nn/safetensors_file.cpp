#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/posix.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/nn/safetensors_header.h"

// Reading a file, apart from what is done with modules: nothing here needs more of ours than core.

namespace lockstep::nn {

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe that nobody writes must not wait; it is refused below.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  LOCKSTEP_CHECK(file, "[safetensors] cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  LOCKSTEP_CHECK(::fstat(file.get(), &info) == 0, "[safetensors] cannot read {}: {}", path, std::strerror(errno));
  LOCKSTEP_CHECK(S_ISREG(info.st_mode), "[safetensors] {} is not a regular file", path);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  LOCKSTEP_CHECK(size >= 8, "[safetensors] {}: the file has {} bytes, too few for the header's length at offset 0",
                 path, size);
  std::uint64_t length = 0;
  LOCKSTEP_CHECK(read_all_at(file.get(), &length, 8, 0) == 8, "[safetensors] cannot read {} at offset 0: {}", path,
                 std::strerror(errno));
  LOCKSTEP_CHECK(
      length <= kMaxSafetensorsHeader,
      "[safetensors] {}: offset 0 claims a header of {} bytes, expected at most {}; the file is damaged or of "
      "another format",
      path, length, kMaxSafetensorsHeader);
  LOCKSTEP_CHECK(length <= size - 8,
                 "[safetensors] {}: offset 0 claims a header of {} bytes, but only {} follow; the file is cut short",
                 path, length, size - 8);
  std::string header(length, '\0');
  LOCKSTEP_CHECK(read_all_at(file.get(), header.data(), length, 8) == static_cast<std::int64_t>(length),
                 "[safetensors] cannot read the header of {} at offset 8", path);
  detail::parse_safetensors_header(path, header, 8 + length, size - 8 - length, entries_, metadata_);
  places_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) places_.emplace(entries_[i].name, i);
  descriptor_ = std::make_shared<FileDescriptor>(std::move(file));
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  LOCKSTEP_CHECK(entry, "[safetensors] {} has no tensor '{}'", path_, name);
  return *entry;
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, void* target) const {
  const std::int64_t n = read_all_at(descriptor_->get(), target, entry.bytes, entry.offset);
  LOCKSTEP_CHECK(n == static_cast<std::int64_t>(entry.bytes),
                 "[safetensors] {}: tensor '{}' at offset {} could not be read: {}", path_, entry.name, entry.offset,
                 n < 0 ? std::strerror(errno) : "the file has become shorter");
}

void SafetensorsFile::check_bools(const SafetensorsEntry& entry, const unsigned char* values) const {
  const unsigned char* end = values + entry.bytes;
  const unsigned char* wrong = std::find_if(values, end, [](unsigned char value) { return value > 1; });
  LOCKSTEP_CHECK(wrong == end,
                 "[safetensors] {}: tensor '{}' is BOOL and has the byte {} at offset {}, expected 0 or 1; the file is "
                 "damaged",
                 path_, entry.name, *wrong, entry.offset + static_cast<std::uint64_t>(wrong - values));
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry& entry = at(name);
  Tensor out = empty(entry.shape, {.dtype = entry.dtype});
  read_bytes(entry, out.raw_data());
  if (entry.dtype == kBool) check_bools(entry, static_cast<const unsigned char*>(out.raw_data()));
  return out;
}

void SafetensorsFile::read_into(std::string_view name, const Tensor& target) const {
  const SafetensorsEntry& entry = at(name);
  LOCKSTEP_CHECK(entry.shape == target.sizes() && entry.dtype == target.dtype(),
                 "[safetensors] {}: tensor '{}' is {} {}, expected {} {}", path_, name, lockstep::name(entry.dtype),
                 to_string(entry.shape), lockstep::name(target.dtype()), to_string(target.sizes()));
  if (target.device().is_cpu() && target.is_contiguous() && entry.dtype != kBool)
    read_bytes(entry, target.raw_data());
  else
    copy_values(read(name), target);
  target.storage()->bump_version();
}

}  // namespace lockstep::nn
