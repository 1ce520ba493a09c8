#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "apps/gpt/language_model.h"
#include "apps/gpt/tokenizer.h"

namespace lockstep::gpt {

/// A folder as transformers writes it: config.json, model.safetensors (or its parts, with
/// model.safetensors.index.json), vocab.json and merges.txt.
struct LoadedModel {
  std::unique_ptr<LanguageModel> model;
  Tokenizer tokenizer;
};
/// Reads one, in evaluation mode, with the adapters of a file that save_adapters() wrote if one is named. Throws Error
/// naming file and place for what is missing or does not fit.
LoadedModel load_folder(const std::string& folder, const std::string& adapters = "");
/// The model of a folder alone, whose config.json gave `config`. Throws Error as above, and before memory is taken for
/// the model if the folder's weights are not those that `config` asks for.
std::unique_ptr<LanguageModel> make_from_folder(const Config& config, const std::string& folder);
/// Writes one that transformers loads too, without adapters (merge them first). Makes the folder, which
/// goes again if not all can be written; the index of a model in parts that was there goes.
void save_folder(const std::string& folder, const LanguageModel& model, const Tokenizer& tokenizer);
/// Of the weights that save_folder() and save_adapters() write: about what these take.
struct SavedBytes {
  std::size_t folder = 0;
  std::size_t adapters = 0;
};
SavedBytes saved_bytes(const LanguageModel& model);
/// The names of the files that save_folder() writes.
std::vector<std::string> files_of_folder();

/// Reads weights by name: GPT-2's with and without "transformer." in front, and transposed as they are in such files;
/// masks that old files hold are passed over. Any floating-point dtype. Throws Error, before anything is changed, with
/// the names that are missing, unexpected or of another shape. Adapters are left alone.
void load_weights(LanguageModel& model, const std::string& path);

/// Freezes all but the adapters.
void train_adapters_only(LanguageModel& model);
/// The adapters alone, under their names. Throws Error if there are none.
void save_adapters(const LanguageModel& model, const std::string& path);
/// Back again; rank and alpha of the file must be the model's.
void load_adapters(LanguageModel& model, const std::string& path);
/// Puts the adapters into the weights; see Projection::merge().
void merge_adapters(LanguageModel& model);

}  // namespace lockstep::gpt
