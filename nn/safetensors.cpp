#include "lockstep/nn/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/nn/name_list.h"
#include "lockstep/nn/safetensors_header.h"

namespace lockstep::nn {

bool is_checkpoint(const SafetensorsFile& file) {
  return file.metadata().contains(kCheckpointKey);
}

detail::SafetensorsLayout detail::lay_out_safetensors(const std::vector<NamedTensor>& tensors, const std::string& path,
                                                      const Metadata& metadata) {
  SafetensorsLayout layout{tensors, {}, {}};
  std::set<std::string_view> names{"__metadata__"};
  for (const NamedTensor& t : layout.ordered) {
    LOCKSTEP_CHECK(t.tensor.defined(), "[safetensors] cannot write {}: tensor '{}' is undefined", path, t.name);
    LOCKSTEP_CHECK(names.insert(t.name).second, "[safetensors] cannot write {}: the name '{}' is taken", path, t.name);
  }
  // Wide elements first, so that every tensor is aligned to its element size wherever a reader maps the file.
  std::ranges::stable_sort(layout.ordered, [](const NamedTensor& a, const NamedTensor& b) {
    const std::size_t size_a = element_size(a.tensor.dtype()), size_b = element_size(b.tensor.dtype());
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  LOCKSTEP_CHECK(!metadata.contains(kChecksumsKey), "[safetensors] cannot write {}: the metadata key '{}' is taken",
                 path, kChecksumsKey);
  Metadata with_checksums = metadata;
  with_checksums.emplace(kChecksumsKey, std::string((1 + layout.ordered.size()) * kChecksumDigits, '0'));
  layout.header = make_safetensors_header(layout.ordered, with_checksums);
  std::uint64_t at = layout.header.size();
  for (const NamedTensor& t : layout.ordered) {
    layout.offsets.push_back(at);
    at += static_cast<std::uint64_t>(t.tensor.numel()) * element_size(t.tensor.dtype());
  }
  layout.offsets.push_back(at);
  return layout;
}

void save_safetensors(const std::vector<NamedTensor>& tensors, const std::string& path, const Metadata& metadata) {
  const auto [ordered, offsets, header] = detail::lay_out_safetensors(tensors, path, metadata);
  AtomicFile file(path);
  file.reserve(offsets.back());
  file.write(header.data(), header.size());
  std::string checksums = checksum_digits(header.data(), header.size());
  for (const NamedTensor& t : ordered) {
    const Tensor value = as_contiguous(move_values(t.tensor, Device()));
    const LibraryAccess access;
    file.write(value.raw_data(), value.nbytes());
    checksums += checksum_digits(value.raw_data(), value.nbytes());
  }
  file.write_at(detail::place_of_checksums(header), checksums.data(), checksums.size());
  file.commit();
}

void save(const Module& module, const std::string& path, const Metadata& metadata) {
  save_safetensors(module.state(), path, metadata);
}

namespace {

struct Fit {
  std::vector<NamedTensor> fitting;
  LoadReport rest;
};

/// A tensor of a module and all its names: several for one that is tied.
struct Tied {
  Tensor tensor;
  std::vector<std::string> names;
};

std::vector<Tied> by_tensor(const Module& module) {
  std::vector<Tied> found;
  std::map<const TensorImpl*, std::size_t> places;
  for (NamedTensor& t : module.state(/*remove_duplicate=*/false)) {
    const auto [place, is_new] = places.emplace(t.tensor.impl(), found.size());
    if (is_new) found.push_back({t.tensor, {}});
    found[place->second].names.push_back(std::move(t.name));
  }
  return found;
}

/// Whether the file has the same under both names, which it has.
bool same_in(const SafetensorsFile& file, const std::string& a, const std::string& b) {
  const SafetensorsEntry &first = *file.find(a), &second = *file.find(b);
  if (first.shape != second.shape || first.dtype != second.dtype) return false;
  const Tensor one = file.read(a), other = file.read(b);
  return one.nbytes() == 0 || std::memcmp(one.raw_data(), other.raw_data(), one.nbytes()) == 0;
}

// What of `file` goes where. Throws Error if load() must not go on.
Fit fit(const Module& module, const SafetensorsFile& file, LoadOptions options) {
  const bool checkpoint = is_checkpoint(file);
  Fit result;
  LoadReport& rest = result.rest;
  std::set<std::string, std::less<>> wanted;
  const std::vector<Tied> state = by_tensor(module);
  for (const auto& [tensor, names] : state) {
    wanted.insert(names.begin(), names.end());
    const auto first = std::ranges::find_if(names, [&](const std::string& each) { return file.find(each); });
    const NamedTensor t{first == names.end() ? names.front() : *first, tensor};
    const SafetensorsEntry* entry = file.find(t.name);
    if (!entry)
      rest.missing.push_back(t.name);
    else if (entry->shape != t.tensor.sizes() || entry->dtype != t.tensor.dtype())
      rest.mismatched.push_back(fmt::format("{} (file: {} {}, model: {} {})", t.name, name(entry->dtype),
                                            to_string(entry->shape), name(t.tensor.dtype()),
                                            to_string(t.tensor.sizes())));
    else
      result.fitting.push_back(t);
    if (entry)
      for (auto other = first + 1; other != names.end(); ++other)
        if (file.find(*other) && !same_in(file, t.name, *other))
          rest.mismatched.push_back(
              fmt::format("{} (file: not the values of {}, with which the model ties it)", *other, t.name));
  }
  for (const SafetensorsEntry& entry : file.entries())
    if (!wanted.contains(entry.name) &&
        !(checkpoint && (entry.name.starts_with(kOptimizerPrefix) || entry.name.starts_with(kExtraTensorPrefix))))
      rest.unexpected.push_back(entry.name);
  const bool fits = rest.missing.empty() && rest.unexpected.empty() && rest.mismatched.empty();
  LOCKSTEP_CHECK(fits || (!options.strict && !result.fitting.empty()), "[nn::load] {} does not fit {}:{}{}{}",
                 file.path(), module.type_name(), detail::NameList(rest.missing).text(" missing "),
                 detail::NameList(rest.unexpected).text(" unexpected "),
                 detail::NameList(rest.mismatched).text(" wrong shape or dtype "));
  for (const NamedTensor& t : result.fitting)
    if (t.tensor.dtype() == kBool) file.read(t.name);  // the only values that can be wrong without being damaged
  return result;
}

}  // namespace

LoadReport load(Module& module, const std::string& path, LoadOptions options) {
  return load(module, SafetensorsFile(path), options);
}

LoadReport load(Module& module, const SafetensorsFile& file, LoadOptions options) {
  Fit result = fit(module, file, options);
  std::vector<Tensor> values;  // all of them before the first is changed, where damage can be noticed
  if (file.has_checksums())
    for (const NamedTensor& t : result.fitting) values.push_back(file.read(t.name));
  for (std::size_t i = 0; i < result.fitting.size(); ++i) {
    const NamedTensor& t = result.fitting[i];
    if (values.empty()) {
      file.read_into(t.name, t.tensor);
    } else {
      copy_values(values[i], t.tensor);
      t.tensor.storage()->bump_version();
    }
  }
  return std::move(result.rest);
}

void check_load(const Module& module, const SafetensorsFile& file, LoadOptions options) {
  fit(module, file, options);
}

}  // namespace lockstep::nn
