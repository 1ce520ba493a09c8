#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

namespace lockstep {
class Checksum;
class FileDescriptor;
}  // namespace lockstep

/// Note [safetensors]
/// The file format of huggingface/safetensors: eight bytes of little-endian header length, a JSON header that gives
/// each tensor's dtype, shape and place, then the tensors' bytes, row-major and without gaps. Nothing in it is
/// executed. The header is checked in full when a file is opened, before memory is taken for any tensor; every error
/// names file and offset. Files that were written here also hold checksums, in the metadata: one of all that the header
/// says, metadata included, and one of each tensor, so that damage does not pass unnoticed. Files of other programs
/// have none, and are read all the same.
namespace lockstep::nn {

/// Strings by name, as the header's __metadata__.
using Metadata = std::map<std::string, std::string>;

/// Headers above this size are refused: it is room for some 200,000 tensors.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 16'000'000;

/// What marks a training checkpoint (Note [Checkpoints]): the metadata key that holds its version.
inline constexpr const char* kCheckpointKey = "lockstep.checkpoint";
/// How the names of a training checkpoint's tensors begin that are not weights: an optimizer's, and what else a
/// training keeps (TrainingState::tensors).
inline constexpr std::string_view kOptimizerPrefix = "__optimizer__.";
inline constexpr std::string_view kExtraTensorPrefix = "__extra__.";

/// A tensor in a file: what the header says of it.
struct SafetensorsEntry {
  std::string name;      ///< that the tensor is found by
  DType dtype;           ///< type of the elements
  Shape shape;           ///< sizes
  std::uint64_t offset;  ///< from the start of the file
  std::uint64_t bytes;   ///< its size in the file
};

/// An open file, for access to single tensors.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws Error for a file that cannot be read, is cut short or damaged, or holds a
  /// dtype or a number of dimensions that tensors here cannot have.
  explicit SafetensorsFile(const std::string& path);
  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::string& path() const { return path_; }  ///< that it was opened by
  /// In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }  ///< strings that were saved with the tensors
  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Throws Error if the tensor's bytes are not those that were written. Reads them all; in a file without checksums
  /// nothing can be told, and nothing is read.
  void verify(std::string_view name) const;
  void verify() const;                                        ///< all tensors
  bool has_checksums() const { return !checksums_.empty(); }  ///< damage is noticed
  /// A new tensor on the CPU. Throws as verify(), if there is none of that name, or if a byte of a bool is neither 0
  /// nor 1.
  Tensor read(std::string_view name) const;
  /// `size` of its elements from element `begin` on, as a new tensor of one dimension; of the file no more is read, so
  /// that only all of them can be verified.
  Tensor read(std::string_view name, std::int64_t begin, std::int64_t size) const;
  /// Into an existing tensor of the same shape and dtype, on any device.
  void read_into(std::string_view name, const Tensor& target) const;

 private:
  /// `bytes` of an entry from byte `at` of it on; those of bools are checked.
  void read_bytes(const SafetensorsEntry& entry, std::uint64_t at, std::uint64_t bytes, void* target) const;
  const SafetensorsEntry& at(std::string_view name) const;
  void take_checksums();
  std::size_t checksums_size() const;
  bool are_checksums(const std::string& name, const std::string& value) const;
  void check_checksum(const SafetensorsEntry& entry, const Checksum& checksum) const;
  void check_checksum(const SafetensorsEntry& entry, const void* bytes) const;

  std::string path_;
  std::shared_ptr<FileDescriptor> descriptor_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> places_;  ///< in entries_, by name
  Metadata metadata_;
  std::string checksums_;  ///< of the header, then of `entries_`; empty if the file has none
};

/// True for a training checkpoint, which save_checkpoint() wrote: it holds more than weights.
bool is_checkpoint(const SafetensorsFile& file);

/// Writes tensors of any device and strides. The file appears under its name complete or not at all: it is written
/// beside it, synced and renamed. Throws Error, and leaves nothing behind, if that fails (disk full, no permission) or
/// a name comes twice.
void save_safetensors(const std::vector<NamedTensor>& tensors, const std::string& path, const Metadata& metadata = {});

/// Writes a module's parameters and buffers.
void save(const Module& module, const std::string& path, const Metadata& metadata = {});

/// Options of load().
struct LoadOptions {
  /// False: names that only one side has, or that differ in shape or dtype, are passed over, unless nothing fits.
  bool strict = true;
};

/// What load() passed over; all empty if the file fitted.
struct LoadReport {
  std::vector<std::string> missing;     ///< the module's names that the file lacks
  std::vector<std::string> unexpected;  ///< the file's names that the module lacks
  std::vector<std::string> mismatched;  ///< of another shape or dtype: "fc.weight (file: float32 [2], model: ...)"
};

/// Reads parameters and buffers by name, in place, on whatever devices they are. Also takes a training checkpoint, of
/// which it reads the weights. A tied tensor is found by any of its names; a file may have several, with the same
/// values. Throws Error, before anything is changed, with all missing, unexpected and mismatched
/// names.
LoadReport load(Module& module, const std::string& path, LoadOptions options = {});
LoadReport load(Module& module, const SafetensorsFile& file, LoadOptions options = {});
/// Throws what load() would throw, but for damage to the values, which it does not read, and changes nothing.
void check_load(const Module& module, const SafetensorsFile& file, LoadOptions options = {});

}  // namespace lockstep::nn
