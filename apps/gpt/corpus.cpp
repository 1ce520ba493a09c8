#include "apps/gpt/corpus.h"

#include <filesystem>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/out_of_memory.h"

namespace lockstep::gpt {

Corpus corpus_of_text(const std::string& path, const std::string& tokenizer_folder, double validation_share) {
  LOCKSTEP_CHECK(validation_share > 0.0 && validation_share < 1.0,
                 "[corpus] expected a share for validation between 0 and 1, found {}", validation_share);
  const std::string text = read_input_file(path, "[corpus]");
  LOCKSTEP_CHECK(!text.empty(), "[corpus] '{}' is empty", path);
  Corpus corpus;
  corpus.tokenizer = tokenizer_folder.empty() ? Tokenizer::of_bytes(text) : Tokenizer::from_folder(tokenizer_folder);
  const auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * (1.0 - validation_share));
  const std::string_view all = text;
  with_memory_for(fmt::format("making tokens of '{}'", path), [&] {
    corpus.training = Tokens::hold(corpus.tokenizer.encode(all.substr(0, cut)));
    corpus.validation = Tokens::hold(corpus.tokenizer.encode(all.substr(cut)));
  });
  return corpus;
}

Corpus open_corpus(const std::string& folder) {
  Corpus corpus{Tokenizer::from_folder(folder), Tokens::open(folder + "/train.bin"), Tokens::open(folder + "/val.bin")};
  corpus.training->check(corpus.tokenizer.size(), folder + "/train.bin");
  corpus.validation->check(corpus.tokenizer.size(), folder + "/val.bin");
  return corpus;
}

void save_corpus(const Corpus& corpus, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, "[corpus] the folder '{}' cannot be made: {}", folder, error.message());
  write_tokens(folder + "/train.bin", *corpus.training);
  write_tokens(folder + "/val.bin", *corpus.validation);
  corpus.tokenizer.save(folder);
}

std::string text_path(const std::string& text) {
  if (!text.empty()) return text;
  const auto data = environment_variable("LOCKSTEP_DATA");
  LOCKSTEP_CHECK(data,
                 "[corpus] expected a text: name one, or set LOCKSTEP_DATA to a folder with "
                 "tinyshakespeare/input.txt");
  return *data + "/tinyshakespeare/input.txt";
}

}  // namespace lockstep::gpt
