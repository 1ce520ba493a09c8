#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/posix.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

/// Note [safetensors]
/// The file format of huggingface/safetensors: eight bytes of little-endian header length, a JSON header that gives
/// each tensor's dtype, shape and place, then the tensors' bytes, row-major and without gaps. Nothing in it is
/// executed. A file is checked in full when it is opened, before memory is taken for any tensor; every error names file
/// and offset.
namespace lockstep::nn {

using Metadata = std::map<std::string, std::string>;

/// Headers above this size are refused, as by other readers of the format.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t offset;  ///< from the start of the file
  std::uint64_t bytes;
};

/// An open file, for access to single tensors.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws Error for a file that cannot be read, is cut short or damaged, or holds a
  /// dtype or a number of dimensions that tensors here cannot have.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }
  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const;
  /// A new tensor on the CPU. Throws Error if there is none of that name.
  Tensor read(std::string_view name) const;
  /// Into an existing tensor of the same shape and dtype, on any device.
  void read_into(std::string_view name, const Tensor& target) const;

 private:
  void read_bytes(const SafetensorsEntry& entry, void* target) const;
  const SafetensorsEntry& at(std::string_view name) const;

  std::string path_;
  FileDescriptor descriptor_;
  std::vector<SafetensorsEntry> entries_;
  Metadata metadata_;
};

/// Writes tensors of any device and strides. The file appears under its name complete or not at all: it is written
/// beside it, synced and renamed. Throws Error, and leaves nothing behind, if that fails (disk full, no permission) or
/// a name comes twice.
void save_safetensors(const std::vector<NamedTensor>& tensors, const std::string& path, const Metadata& metadata = {});

/// Writes a module's parameters and buffers.
void save(const Module& module, const std::string& path, const Metadata& metadata = {});

struct LoadOptions {
  bool strict = true;  ///< false: names that only one side has are passed over, unless no name is common
};

/// Reads parameters and buffers by name, in place, on whatever devices they are. Also takes a training checkpoint, of
/// which it reads the weights. Throws Error, before anything is changed, with all missing, unexpected and mismatched
/// names.
void load(Module& module, const std::string& path, LoadOptions options = {});
void load(Module& module, const SafetensorsFile& file, LoadOptions options = {});

}  // namespace lockstep::nn
