#include "apps/gpt/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "apps/gpt/json_object.h"
#include "apps/gpt/parameter_shapes.h"
#include "apps/gpt/projection.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/json.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::gpt {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kAdapterA = ".lora_A.", kAdapterB = ".lora_B.";

bool is_adapter(std::string_view name) {
  return name.find(kAdapterA) != std::string_view::npos || name.find(kAdapterB) != std::string_view::npos;
}

/// Weights that GPT-2's files hold as [in, out].
bool is_transposed(const Config& config, std::string_view name) {
  if (config.family != Family::gpt2) return false;
  for (const std::string_view end :
       {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"})
    if (name.ends_with(end)) return true;
  return false;
}

/// Tensors of a file that are no weights of ours: masks, rotary frequencies, and an output projection that is tied.
bool is_passed_over(const Config& config, std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq") ||
         (config.tied && name == "lm_head.weight");
}

Tensor turned(const Tensor& matrix) {
  return copy_contiguous(
      matrix.as_strided({matrix.size(1), matrix.size(0)}, {matrix.strides()[1], matrix.strides()[0]}, matrix.offset()));
}

constexpr const char* kIndex = "model.safetensors.index.json";

/// The files that hold a folder's weights.
std::vector<std::string> weight_files(const std::string& folder) {
  const std::string index = folder + "/" + kIndex;
  if (!std::filesystem::exists(index)) return {folder + "/model.safetensors"};
  const JsonObject map = JsonObject::read(index, "[weights]").object("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.json().items()) {
    LOCKSTEP_CHECK(file.is_string() && file.get<std::string>().find('/') == std::string::npos,
                   "{}: expected a file of the folder for '{}', found {}", map.where(), tensor, describe_json(file));
    names.insert(folder + "/" + file.get<std::string>());
  }
  LOCKSTEP_CHECK(!names.empty(), "{} names no files", map.where());
  return {names.begin(), names.end()};
}

std::string join(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(kShown, names.size());
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > kShown ? text + fmt::format(" and {} more", names.size() - kShown) : text;
}

/// Files that hold one model's weights.
class WeightFiles {
 public:
  explicit WeightFiles(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) files_.emplace_back(path);
  }
  const std::string& path() const { return files_[0].path(); }
  std::size_t count() const {
    std::size_t sum = 0;
    for (const nn::SafetensorsFile& file : files_) sum += file.entries().size();
    return sum;
  }
  /// Throws Error with the names of `parameters` that are missing, unexpected or of another shape; adapters are left
  /// alone. Returns where each of the others is.
  struct Source {
    const nn::SafetensorsFile* file = nullptr;
    const nn::SafetensorsEntry* entry = nullptr;
  };
  std::map<std::string, Source, std::less<>> find(const Config& config,
                                                  const std::vector<NamedShape>& parameters) const;

 private:
  std::vector<nn::SafetensorsFile> files_;
};

std::map<std::string, WeightFiles::Source, std::less<>> WeightFiles::find(
    const Config& config, const std::vector<NamedShape>& parameters) const {
  std::map<std::string, Source, std::less<>> there, found;
  for (const nn::SafetensorsFile& file : files_)
    for (const nn::SafetensorsEntry& entry : file.entries()) {
      const bool prefixed = config.family == Family::gpt2 && entry.name.starts_with(kPrefix);
      const std::string name = prefixed ? entry.name.substr(kPrefix.size()) : entry.name;
      if (is_passed_over(config, name) || is_adapter(name)) continue;
      there.emplace(name, Source{&file, &entry});
    }
  std::vector<std::string> missing, mismatched;
  for (const auto& [name, shape] : parameters) {
    if (is_adapter(name)) continue;
    const auto at = there.find(name);
    if (at == there.end()) {
      missing.push_back(name);
      continue;
    }
    Shape of_file = at->second.entry->shape;
    if (is_transposed(config, name) && of_file.size() == 2) of_file = {of_file[1], of_file[0]};
    if (of_file != shape)
      mismatched.push_back(fmt::format("{} (file: {}, model: {})", name, to_string(of_file), to_string(shape)));
    found.insert(there.extract(at));
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, source] : there) unexpected.push_back(name);
  LOCKSTEP_CHECK(missing.empty() && mismatched.empty() && unexpected.empty(),
                 "[weights] '{}' does not fit the model; missing: {}; unexpected: {}; of another shape: {}", path(),
                 join(missing), join(unexpected), join(mismatched));
  return found;
}

std::vector<NamedShape> shapes_of(const LanguageModel& model) {
  std::vector<NamedShape> shapes;
  for (const nn::NamedTensor& p : model.named_parameters()) shapes.push_back({p.name, p.tensor.sizes()});
  return shapes;
}

void load_files(LanguageModel& model, const WeightFiles& files) {
  const auto sources = files.find(model.config(), shapes_of(model));
  std::vector<std::pair<Tensor, Tensor>> copies;  // from, to
  for (const nn::NamedTensor& p : model.named_parameters()) {
    const auto at = sources.find(p.name);
    if (at == sources.end()) continue;
    const Tensor value = at->second.file->read(at->second.entry->name);
    copies.emplace_back(is_transposed(model.config(), p.name) ? turned(value) : value, p.tensor.detach());
  }
  for (const auto& [from, to] : copies) copy_values(from, to);
}

/// Throws Error unless the adapters of `path` are those among `parameters`.
void check_adapters(const nn::SafetensorsFile& file, const std::vector<NamedShape>& parameters, std::int64_t rank) {
  std::size_t count = 0;
  for (const auto& [name, shape] : parameters) {
    if (!is_adapter(name)) continue;
    ++count;
    const nn::SafetensorsEntry* entry = file.find(name);
    LOCKSTEP_CHECK(entry, "[lora] '{}' has no {}, which the model takes", file.path(), name);
    LOCKSTEP_CHECK(entry->shape == shape, "[lora] '{}': {} is {}, and the model takes {} with lora.rank {}",
                   file.path(), name, to_string(entry->shape), to_string(shape), rank);
  }
  LOCKSTEP_CHECK(file.entries().size() == count, "[lora] '{}' has {} tensors, the model's adapters are {}", file.path(),
                 file.entries().size(), count);
}

LoraConfig lora_of(const nn::SafetensorsFile& file) {
  const auto text = [&](const char* key) -> const std::string& {
    const auto at = file.metadata().find(key);
    LOCKSTEP_CHECK(at != file.metadata().end(), "[lora] '{}' holds no adapters: its metadata have no {}", file.path(),
                   key);
    return at->second;
  };
  constexpr std::int64_t kMostRank = std::numeric_limits<std::int32_t>::max();
  const auto rank = parse_number<std::int64_t>(text("lora.rank"));
  LOCKSTEP_CHECK(rank && *rank >= 1 && *rank <= kMostRank,
                 "[lora] '{}': expected a whole number from 1 to {} for lora.rank in the metadata, found '{}'",
                 file.path(), kMostRank, text("lora.rank"));
  const auto alpha = parse_number<double>(text("lora.alpha"));
  LOCKSTEP_CHECK(alpha && std::isfinite(*alpha) && *alpha > 0,
                 "[lora] '{}': expected a number above 0 for lora.alpha in the metadata, found '{}'", file.path(),
                 text("lora.alpha"));
  return {.rank = *rank, .alpha = *alpha};
}

/// Numbers of config.json and of an adapter file are believed where the tensors bear them out, and memory is taken for
/// the model after that alone.
std::unique_ptr<LanguageModel> make_checked(const Config& config, const WeightFiles& files, const std::string& folder,
                                            const nn::SafetensorsFile* adapters) {
  LOCKSTEP_CHECK(config.layers <= static_cast<std::int64_t>(files.count()),
                 "[weights] '{}/config.json' says {} layers, and '{}' holds {} tensors; expected several for each",
                 folder, config.layers, files.path(), files.count());
  const std::vector<NamedShape> shapes = parameter_shapes(config);
  files.find(config, shapes);
  if (adapters) check_adapters(*adapters, shapes, config.lora.rank);
  auto model = LanguageModel::make(config);
  load_files(*model, files);
  return model;
}

void write_files(const std::string& folder, const LanguageModel& model, const Tokenizer& tokenizer) {
  std::vector<nn::NamedTensor> tensors;
  for (const nn::NamedTensor& p : model.named_parameters()) {
    if (is_adapter(p.name)) continue;
    const bool prefixed = model.config().family == Family::gpt2 && p.name != "lm_head.weight";
    const Tensor value = move_values(p.tensor.detach(), Device());
    tensors.push_back({prefixed ? std::string(kPrefix) + p.name : p.name,
                       is_transposed(model.config(), p.name) ? turned(value) : value});
  }
  nn::save_safetensors(tensors, folder + "/model.safetensors", {{"format", "pt"}});
  // An index of parts that an older model was in would go on naming those.
  std::error_code error;
  std::filesystem::remove(folder + "/" + kIndex, error);
  LOCKSTEP_CHECK(!error, "[weights] the index of the model that was in '{}' cannot be removed: {}", folder,
                 error.message());
  write_config(model.config(), folder + "/config.json");
  tokenizer.save(folder);
}

}  // namespace

void load_weights(LanguageModel& model, const std::string& path) {
  load_files(model, WeightFiles({path}));
}

std::unique_ptr<LanguageModel> make_from_folder(const Config& config, const std::string& folder) {
  return make_checked(config, WeightFiles(weight_files(folder)), folder, nullptr);
}

LoadedModel load_folder(const std::string& folder, const std::string& adapters) {
  LOCKSTEP_CHECK(std::filesystem::is_directory(folder),
                 "[weights] '{}' is no folder; expected one with config.json, model.safetensors, vocab.json and "
                 "merges.txt",
                 folder);
  Config config = read_config(folder + "/config.json");
  std::optional<nn::SafetensorsFile> adapter_file;
  if (!adapters.empty()) config.lora = lora_of(adapter_file.emplace(adapters));
  LoadedModel loaded{
      make_checked(config, WeightFiles(weight_files(folder)), folder, adapter_file ? &*adapter_file : nullptr),
      Tokenizer::from_folder(folder)};
  if (adapter_file) load_adapters(*loaded.model, adapters);
  loaded.model->eval();
  return loaded;
}

std::vector<std::string> files_of_folder() {
  return {"model.safetensors", "config.json", "vocab.json", "merges.txt"};
}

SavedBytes saved_bytes(const LanguageModel& model) {
  SavedBytes bytes;
  for (const nn::NamedTensor& p : model.named_parameters())
    (is_adapter(p.name) ? bytes.adapters : bytes.folder) +=
        static_cast<std::size_t>(p.tensor.numel()) * element_size(p.tensor.dtype());
  return bytes;
}

void save_folder(const std::string& folder, const LanguageModel& model, const Tokenizer& tokenizer) {
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, "[weights] the folder '{}' cannot be made: {}", folder, error.message());
  try {
    write_files(folder, model, tokenizer);
  } catch (...) {
    if (is_new) std::filesystem::remove_all(folder, error);
    throw;
  }
}

void train_adapters_only(LanguageModel& model) {
  LOCKSTEP_CHECK(model.config().lora.rank > 0, "[lora] the model has no adapters; make it with a rank");
  for (const nn::NamedTensor& p : model.named_parameters()) p.tensor.set_requires_grad(is_adapter(p.name));
}

void save_adapters(const LanguageModel& model, const std::string& path) {
  LOCKSTEP_CHECK(model.config().lora.rank > 0, "[lora] the model has no adapters to save");
  std::vector<nn::NamedTensor> adapters = model.named_parameters();
  std::erase_if(adapters, [](const nn::NamedTensor& p) { return !is_adapter(p.name); });
  const LoraConfig& lora = model.config().lora;
  nn::save_safetensors(adapters, path,
                       {{"lora.rank", std::to_string(lora.rank)}, {"lora.alpha", fmt::format("{}", lora.alpha)}});
}

void load_adapters(LanguageModel& model, const std::string& path) {
  const nn::SafetensorsFile file(path);
  const LoraConfig lora = lora_of(file);
  LOCKSTEP_CHECK(lora.rank == model.config().lora.rank && lora.alpha == model.config().lora.alpha,
                 "[lora] '{}' has rank {} and alpha {}, the model {} and {}", path, lora.rank, lora.alpha,
                 model.config().lora.rank, model.config().lora.alpha);
  check_adapters(file, shapes_of(model), lora.rank);
  for (const nn::NamedTensor& p : model.named_parameters())
    if (is_adapter(p.name)) copy_values(file.read(p.name), p.tensor.detach());
}

void merge_adapters(LanguageModel& model) {
  for (nn::Module* module : model.modules())
    if (auto* projection = dynamic_cast<Projection*>(module)) projection->merge();
}

}  // namespace lockstep::gpt
