// gpt_generate: continues a text with a model that gpt_train --out wrote, or a GPT-2 or Llama of transformers. See
// --help.

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "apps/gpt/generate.h"
#include "apps/gpt/weights.h"
#include "lockstep/core/check.h"
#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"

namespace lockstep::apps {
namespace {

struct Options {
  std::string model, prompt, adapters;
  gpt::GenerateOptions generate = {.max_tokens = 200, .temperature = 0.8};
  bool statistics = false;
};

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app{"Continues a text.", "gpt_generate"};
  app.add_option("MODEL", options.model,
                 "Folder with config.json, model.safetensors, vocab.json and merges.txt (gpt_train --out)")
      ->required();
  app.add_option("PROMPT", options.prompt, "The text that is continued")->required();
  app.add_option("--tokens", options.generate.max_tokens, "Tokens to add")
      ->check(command_line::number<std::int64_t>(0))
      ->capture_default_str();
  app.add_option("--temperature", options.generate.temperature,
                 "Divides the logits: below 1 likelier, above 1 wilder; 0: always the likeliest token")
      ->check(command_line::number<double>(0))
      ->capture_default_str();
  app.add_option("--top-k", options.generate.top_k, "Draw from the so many likeliest tokens; 0: from all")
      ->check(command_line::number<std::int64_t>(0))
      ->capture_default_str();
  app.add_option("--seed", options.generate.seed, "Of the draws")
      ->check(command_line::number<std::uint64_t>())
      ->capture_default_str();
  app.add_flag("!--no-cache", options.generate.cache, "Compute all tokens again for each new one");
  app.add_option("--adapters", options.adapters, "LoRA adapters of the model (gpt_train --adapters)");
  app.add_flag("--statistics", options.statistics, "Print tokens a second to stderr");
  if (!command_line::parse(app, argc, argv)) return std::nullopt;
  return options;
}

int run(const Options& options) {
  gpt::LoadedModel loaded = gpt::load_folder(options.model, options.adapters);
  gpt::merge_adapters(*loaded.model);
  const std::vector<std::int32_t> prompt = loaded.tokenizer.encode(options.prompt);
  LOCKSTEP_CHECK(!prompt.empty(), "the prompt is empty; expected at least one character");
  const auto put = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  put(options.prompt);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::int32_t> tokens;
  try {
    tokens = gpt::generate(*loaded.model, prompt, options.generate, [&](std::int32_t token) {
      put(loaded.tokenizer.decode({&token, 1}));
    });
  } catch (...) {
    put("\n");  // the message has a line of its own
    throw;
  }
  put("\n");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.statistics)
    fmt::print(stderr, "tokens={} seconds={:.3f} tokens_per_s={:.1f}\n", tokens.size(), seconds,
               static_cast<double>(tokens.size()) / seconds);
  return 0;
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) {
  return lockstep::command_line::run_main("gpt_generate", [&] {
    const auto options = lockstep::apps::parse_options(argc, argv);
    return options ? lockstep::apps::run(*options) : 0;
  });
}
