#include "apps/gpt/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/gpt/files.h"
#include "apps/gpt/projection.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
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

/// The files that hold a folder's weights.
std::vector<std::string> weight_files(const std::string& folder) {
  const std::string index = folder + "/model.safetensors.index.json";
  if (!std::filesystem::exists(index)) return {folder + "/model.safetensors"};
  const auto json = nlohmann::json::parse(read_file(index, "the index"), nullptr, false);
  LOCKSTEP_CHECK(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
                 "[weights] '{}' has no \"weight_map\"", index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    LOCKSTEP_CHECK(file.is_string() && file.get<std::string>().find('/') == std::string::npos,
                   "[weights] '{}': '{}' names no file of the folder", index, tensor);
    names.insert(folder + "/" + file.get<std::string>());
  }
  return {names.begin(), names.end()};
}

std::string join(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(kShown, names.size());
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > kShown ? text + fmt::format(" and {} more", names.size() - kShown) : text;
}

void load_files(LanguageModel& model, const std::vector<std::string>& paths) {
  struct Source {
    const nn::SafetensorsFile* file;
    std::string name;
  };
  std::vector<nn::SafetensorsFile> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) files.emplace_back(path);
  std::map<std::string, Source, std::less<>> found;
  for (const nn::SafetensorsFile& file : files)
    for (const nn::SafetensorsEntry& entry : file.entries()) {
      const bool prefixed = model.config().family == Family::gpt2 && entry.name.starts_with(kPrefix);
      const std::string name = prefixed ? entry.name.substr(kPrefix.size()) : entry.name;
      if (is_passed_over(model.config(), name) || is_adapter(name)) continue;
      found.emplace(name, Source{&file, entry.name});
    }

  std::vector<std::pair<Tensor, Tensor>> copies;  // from, to
  std::vector<std::string> missing, mismatched;
  for (const nn::NamedTensor& p : model.named_parameters()) {
    if (is_adapter(p.name)) continue;
    const auto at = found.find(p.name);
    if (at == found.end()) {
      missing.push_back(p.name);
      continue;
    }
    Tensor value = at->second.file->read(at->second.name);
    if (is_transposed(model.config(), p.name) && value.dim() == 2) value = turned(value);
    if (value.sizes() != p.tensor.sizes())
      mismatched.push_back(
          fmt::format("{} (file: {}, model: {})", p.name, to_string(value.sizes()), to_string(p.tensor.sizes())));
    copies.emplace_back(value, p.tensor.detach());
    found.erase(at);
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, source] : found) unexpected.push_back(name);
  LOCKSTEP_CHECK(missing.empty() && mismatched.empty() && unexpected.empty(),
                 "[weights] '{}' does not fit the model; missing: {}; unexpected: {}; of another shape: {}", paths[0],
                 join(missing), join(unexpected), join(mismatched));
  for (const auto& [from, to] : copies) copy_values(from, to);
}

}  // namespace

void load_weights(LanguageModel& model, const std::string& path) {
  load_files(model, {path});
}

void load_folder_weights(LanguageModel& model, const std::string& folder) {
  load_files(model, weight_files(folder));
}

LoadedModel load_folder(const std::string& folder, const LoraConfig& lora) {
  LOCKSTEP_CHECK(std::filesystem::is_directory(folder),
                 "[weights] '{}' is no folder; expected one with config.json, model.safetensors, vocab.json and "
                 "merges.txt",
                 folder);
  Config config = read_config(folder + "/config.json");
  config.lora = lora;
  LoadedModel loaded{LanguageModel::make(config), Tokenizer::from_folder(folder)};
  load_folder_weights(*loaded.model, folder);
  loaded.model->eval();
  return loaded;
}

void save_folder(const std::string& folder, const LanguageModel& model, const Tokenizer& tokenizer) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, "[weights] the folder '{}' cannot be made: {}", folder, error.message());
  std::vector<nn::NamedTensor> tensors;
  for (const nn::NamedTensor& p : model.named_parameters()) {
    if (is_adapter(p.name)) continue;
    const bool prefixed = model.config().family == Family::gpt2 && p.name != "lm_head.weight";
    const Tensor value = move_values(p.tensor.detach(), Device());
    tensors.push_back({prefixed ? std::string(kPrefix) + p.name : p.name,
                       is_transposed(model.config(), p.name) ? turned(value) : value});
  }
  nn::save_safetensors(tensors, folder + "/model.safetensors", {{"format", "pt"}});
  write_config(model.config(), folder + "/config.json");
  tokenizer.save(folder);
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

LoraConfig adapter_config(const std::string& path) {
  const nn::SafetensorsFile file(path);
  const auto value = [&](const char* key) {
    const auto at = file.metadata().find(key);
    char* end = nullptr;
    const double number = at == file.metadata().end() ? -1.0 : std::strtod(at->second.c_str(), &end);
    LOCKSTEP_CHECK(number > 0 && end && *end == '\0', "[lora] '{}' holds no adapters: its metadata have no {}", path,
                   key);
    return number;
  };
  return {.rank = static_cast<std::int64_t>(value("lora.rank")), .alpha = value("lora.alpha")};
}

void load_adapters(LanguageModel& model, const std::string& path) {
  const LoraConfig lora = adapter_config(path);
  LOCKSTEP_CHECK(lora.rank == model.config().lora.rank && lora.alpha == model.config().lora.alpha,
                 "[lora] '{}' has rank {} and alpha {}, the model {} and {}", path, lora.rank, lora.alpha,
                 model.config().lora.rank, model.config().lora.alpha);
  const nn::SafetensorsFile file(path);
  std::vector<nn::NamedTensor> adapters = model.named_parameters();
  std::erase_if(adapters, [](const nn::NamedTensor& p) { return !is_adapter(p.name); });
  for (const nn::NamedTensor& p : adapters) {
    const nn::SafetensorsEntry* entry = file.find(p.name);
    LOCKSTEP_CHECK(entry && entry->shape == p.tensor.sizes(), "[lora] '{}' has no {} of shape {}", path, p.name,
                   to_string(p.tensor.sizes()));
  }
  LOCKSTEP_CHECK(file.entries().size() == adapters.size(), "[lora] '{}' has {} tensors, the model's adapters are {}",
                 path, file.entries().size(), adapters.size());
  for (const nn::NamedTensor& p : adapters) copy_values(file.read(p.name), p.tensor.detach());
}

void merge_adapters(LanguageModel& model) {
  for (nn::Module* module : model.modules())
    if (auto* projection = dynamic_cast<Projection*>(module)) projection->merge();
}

}  // namespace lockstep::gpt
