// gpt_tokenize: turns a text into token files that gpt_train reads by windows. See --help.

#include <fmt/core.h>

#include <optional>
#include <string>

#include "apps/gpt/corpus.h"
#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"

namespace lockstep::apps {
namespace {

struct Options {
  std::string text, folder, tokenizer;
  double validation = 0.1;
};

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app{
      "Writes the tokens of a text as files of 16-bit numbers, train.bin and val.bin, with vocab.json and merges.txt "
      "beside them.",
      "gpt_tokenize"};
  app.add_option("TEXT", options.text, "The text")->required();
  app.add_option("FOLDER", options.folder, "Where the files go")->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "Folder with vocab.json and merges.txt, such as GPT-2's; default: a token for each byte that occurs");
  app.add_option("--validation", options.validation, "Share of the text, at its end, that goes to val.bin")
      ->check(command_line::number(1e-6, 0.999))
      ->capture_default_str();
  if (!command_line::parse(app, argc, argv)) return std::nullopt;
  return options;
}

int run(const Options& options) {
  const gpt::Corpus corpus = gpt::corpus_of_text(options.text, options.tokenizer, options.validation);
  gpt::save_corpus(corpus, options.folder);
  fmt::print("{} tokens for training, {} for validation, of a vocabulary of {}\n", corpus.training->size(),
             corpus.validation->size(), corpus.tokenizer.size());
  return 0;
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) {
  return lockstep::command_line::run_main("gpt_tokenize", [&] {
    const auto options = lockstep::apps::parse_options(argc, argv);
    return options ? lockstep::apps::run(*options) : 0;
  });
}
