#pragma once

#include <memory>
#include <string>

#include "apps/gpt/token_file.h"
#include "apps/gpt/tokenizer.h"

namespace lockstep::gpt {

/// What a model is trained on and measured with.
struct Corpus {
  Tokenizer tokenizer;
  std::shared_ptr<const Tokens> training, validation;
};

/// Tokens of a text; its last `validation_share` (above 0, below 1) is for validation. Without a folder of vocab.json
/// and merges.txt a token is a byte. Throws Error for what cannot be read.
Corpus corpus_of_text(const std::string& path, const std::string& tokenizer_folder, double validation_share);

/// A folder with train.bin, val.bin, vocab.json and merges.txt, and back: what gpt_tokenize writes.
Corpus open_corpus(const std::string& folder);
void save_corpus(const Corpus& corpus, const std::string& folder);

/// The file that `text` names; empty: that of tinyshakespeare in the folder of the environment variable
/// LOCKSTEP_DATA. Throws Error if there is none.
std::string text_path(const std::string& text);

}  // namespace lockstep::gpt
