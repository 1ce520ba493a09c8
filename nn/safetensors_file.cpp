#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/input_file.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/nn/safetensors_header.h"

// Reading a file, apart from what is done with modules: nothing here needs more of ours than core.

namespace lockstep::nn {
namespace {

/// Whether the text differs from `name` in a few characters, and not in its length, as after damage.
bool is_nearly(std::string_view text, std::string_view name) {
  if (text.size() != name.size() || text == name) return false;
  std::size_t other = 0;
  for (std::size_t i = 0; i < name.size(); ++i) other += text[i] != name[i] ? 1 : 0;
  return other <= name.size() / 4;
}

/// The first four bytes of a ZIP archive, as torch.save() makes them, as the low half of a header's length:
/// "PK\x03\x04".
constexpr std::uint32_t kArchive = 0x04034b50;

/// As checksum_digits() writes them.
bool is_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/// What to do about damage.
constexpr const char* kInstead =
    "; use another copy of the file, or an earlier checkpoint of the training; if another program has changed it on "
    "purpose, let it leave out 'lockstep.checksums' in the metadata";

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  InputFile opened = open_input_file(path, "[safetensors]");
  FileDescriptor& file = opened.descriptor;
  const std::uint64_t size = opened.size;
  LOCKSTEP_CHECK(size >= 8, "[safetensors] {}: the file has {} bytes, too few for the header's length at offset 0",
                 path, size);
  std::uint64_t length = 0;
  LOCKSTEP_CHECK(read_all_at(file.get(), &length, 8, 0) == 8, "[safetensors] cannot read {} at offset 0: {}", path,
                 std::strerror(errno));
  LOCKSTEP_CHECK(static_cast<std::uint32_t>(length) != kArchive,
                 "[safetensors] {}: offset 0 has \"PK\\x03\\x04\", so it is an archive of torch.save(), expected a "
                 "safetensors file; convert it in Python: safetensors.torch.save_file(torch.load(\"model.pt\"), "
                 "\"model.safetensors\"), for a dictionary of tensors such as state_dict()",
                 path);
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
  take_checksums();
  places_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) places_.emplace(entries_[i].name, i);
  descriptor_ = std::make_shared<FileDescriptor>(std::move(file));
}

// Of files that save_safetensors() wrote, and of what another program made of one without leaving this key out.
void SafetensorsFile::take_checksums() {
  // Damage to the name itself must not make it a file without checksums: where it is hardly to be recognised, the value
  // still has the header's.
  const bool has_name = metadata_.contains(detail::kChecksumsKey);
  for (const auto& [name, value] : metadata_)
    LOCKSTEP_CHECK(!is_nearly(name, detail::kChecksumsKey) && (has_name || !are_checksums(name, value)),
                   "[safetensors] {}: '{}' in the metadata of the header at offset 8 was '{}', the name of the file's "
                   "checksums; the file is damaged{}",
                   path_, name, detail::kChecksumsKey, kInstead);
  const auto given = metadata_.find(detail::kChecksumsKey);
  if (given == metadata_.end()) return;
  const std::size_t digits = checksums_size();
  LOCKSTEP_CHECK(given->second.size() == digits && std::ranges::all_of(given->second, is_digit),
                 "[safetensors] {}: '{}' in the metadata of the header at offset 8 has {} characters, expected {} "
                 "hexadecimal digits; the header is damaged{}",
                 path_, detail::kChecksumsKey, given->second.size(), digits, kInstead);
  checksums_ = given->second;
  LOCKSTEP_CHECK(are_checksums(given->first, checksums_),
                 "[safetensors] {}: the header at offset 8 does not have the checksum that was written with it; the "
                 "header is damaged{}",
                 path_, kInstead);
  metadata_.erase(given);
}

std::size_t SafetensorsFile::checksums_size() const {
  return (1 + entries_.size()) * kChecksumDigits;
}

// Whether the value that the metadata has under this name begins with the checksum of the header.
bool SafetensorsFile::are_checksums(const std::string& name, const std::string& value) const {
  if (value.size() != checksums_size() || !std::ranges::all_of(value, is_digit)) return false;
  Metadata metadata = metadata_;
  metadata.erase(name);
  metadata[detail::kChecksumsKey] = std::string(checksums_size(), '0');
  const std::string header = detail::make_safetensors_header(entries_, metadata);
  return value.starts_with(checksum_digits(header.data(), header.size()));
}

void SafetensorsFile::check_checksum(const SafetensorsEntry& entry, const Checksum& checksum) const {
  const auto number = static_cast<std::size_t>(&entry - entries_.data());
  LOCKSTEP_CHECK(std::string_view(checksums_).substr((1 + number) * kChecksumDigits, kChecksumDigits) ==
                     fmt::format("{:016x}", checksum.value()),
                 "[safetensors] {}: the {} bytes of tensor '{}' at offset {} do not have the checksum that was written "
                 "with them; the file is damaged{}",
                 path_, entry.bytes, entry.name, entry.offset, kInstead);
}

void SafetensorsFile::check_checksum(const SafetensorsEntry& entry, const void* bytes) const {
  if (checksums_.empty()) return;
  Checksum checksum;
  checksum.update(bytes, static_cast<std::size_t>(entry.bytes));
  check_checksum(entry, checksum);
}

void SafetensorsFile::verify(std::string_view name) const {
  if (checksums_.empty()) return;
  const SafetensorsEntry& entry = at(name);
  constexpr std::uint64_t kPiece = 1 << 20;
  static_assert(kPiece % Checksum::kBlock == 0);
  std::vector<unsigned char> piece(static_cast<std::size_t>(std::min(kPiece, entry.bytes)));
  Checksum checksum;
  for (std::uint64_t done = 0; done < entry.bytes; done += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, entry.bytes - done)));
    read_bytes(entry, done, piece.size(), piece.data());
    checksum.update(piece.data(), piece.size());
  }
  check_checksum(entry, checksum);
}

void SafetensorsFile::verify() const {
  for (const SafetensorsEntry& entry : entries_) verify(entry.name);
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

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, std::uint64_t at, std::uint64_t bytes,
                                 void* target) const {
  const std::int64_t n = read_all_at(descriptor_->get(), target, bytes, entry.offset + at);
  LOCKSTEP_CHECK(n == static_cast<std::int64_t>(bytes),
                 "[safetensors] {}: tensor '{}' at offset {} could not be read: {}", path_, entry.name, entry.offset,
                 n < 0 ? std::strerror(errno) : "the file has become shorter");
  if (entry.dtype != kBool) return;
  const auto* values = static_cast<const unsigned char*>(target);
  const unsigned char* end = values + bytes;
  const unsigned char* wrong = std::find_if(values, end, [](unsigned char value) { return value > 1; });
  LOCKSTEP_CHECK(wrong == end,
                 "[safetensors] {}: tensor '{}' is BOOL and has the byte {} at offset {}, expected 0 or 1; the file is "
                 "damaged",
                 path_, entry.name, *wrong, entry.offset + at + static_cast<std::uint64_t>(wrong - values));
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry& entry = at(name);
  const LibraryAccess access;
  Tensor out = empty(entry.shape, {.dtype = entry.dtype});
  read_bytes(entry, 0, entry.bytes, out.raw_data());
  check_checksum(entry, out.raw_data());
  return out;
}

Tensor SafetensorsFile::read(std::string_view name, std::int64_t begin, std::int64_t size) const {
  const SafetensorsEntry& entry = at(name);
  const std::uint64_t element = element_size(entry.dtype);
  LOCKSTEP_CHECK(begin >= 0 && size >= 0 && static_cast<std::uint64_t>(begin) <= entry.bytes / element &&
                     static_cast<std::uint64_t>(size) <= entry.bytes / element - static_cast<std::uint64_t>(begin),
                 "[safetensors] {}: tensor '{}' has {} elements; {} from element {} were asked for", path_, name,
                 entry.bytes / element, size, begin);
  const LibraryAccess access;
  Tensor out = empty({size}, {.dtype = entry.dtype});
  read_bytes(entry, static_cast<std::uint64_t>(begin) * element, static_cast<std::uint64_t>(size) * element,
             out.raw_data());
  if (out.nbytes() == entry.bytes) check_checksum(entry, out.raw_data());
  return out;
}

void SafetensorsFile::read_into(std::string_view name, const Tensor& target) const {
  const SafetensorsEntry& entry = at(name);
  LOCKSTEP_CHECK(entry.shape == target.sizes() && entry.dtype == target.dtype(),
                 "[safetensors] {}: tensor '{}' is {} {}, expected {} {}", path_, name, lockstep::name(entry.dtype),
                 to_string(entry.shape), lockstep::name(target.dtype()), to_string(target.sizes()));
  target.storage()->bump_version();
  const LibraryAccess access;
  if (target.device().is_cpu() && target.is_contiguous() && entry.dtype != kBool)
    read_bytes(entry, 0, entry.bytes, target.raw_data());
  else
    copy_values(read(name), target);
}

}  // namespace lockstep::nn
