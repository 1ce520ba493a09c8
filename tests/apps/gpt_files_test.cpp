// Files of models that are not what they should be: refused with the name of the file and of the key, before memory is
// taken for what they say.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/gpt/corpus.h"
#include "apps/gpt/parameter_shapes.h"
#include "apps/gpt/weights.h"
#include "lockstep/core/allocator.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/safetensors.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

std::string deep() {
  return std::string(200'000, '[') + std::string(200'000, ']');
}

/// A copy of a recorded model's folder.
class GptFiles : public ::testing::Test {
 protected:
  void copy(const char* model) {
    std::filesystem::remove_all(folder_.text());
    std::filesystem::copy(std::string(LOCKSTEP_SOURCE_DIR "/tests/golden/gpt/") + model, folder_.text());
  }
  std::string file(const char* name) const { return folder_.text() + "/" + name; }
  void write(const char* name, const std::string& text) const { std::ofstream(file(name)) << text; }
  /// What reading says with `value` under `key` of config.json.
  std::string error_with(const char* model, const char* key, const Json& value) {
    copy(model);
    Json config = Json::parse(std::ifstream(file("config.json")));
    config[key] = value;
    write("config.json", config.dump());
    return error();
  }
  std::string error(const std::string& adapters = "") const {
    return error_of([&] { gpt::load_folder(folder_.text(), adapters); });
  }
  void expect_refused(const std::string& message, const char* name, const std::string& part) const {
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_LT(message.size(), 600u) << message;
  }

  TemporaryPath folder_;
};

// What holds a part of a model would be taken for one.
TEST_F(GptFiles, ThatCannotAllBeWrittenLeaveNoNewFolder) {
  copy("gpt2");
  const gpt::LoadedModel loaded = gpt::load_folder(folder_.text());
  const TemporaryPath place;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { gpt::save_folder(place.text(), *loaded.model, loaded.tokenizer); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(place.text()));
}

TEST_F(GptFiles, OfDeepJsonAreRefused) {
  for (const char* name : {"config.json", "vocab.json", "model.safetensors.index.json"}) {
    copy("gpt2");
    write(name, R"({"n_layer":)" + deep() + "}");
    expect_refused(error(), name, "is nested too deeply at offset 42; expected at most 32 levels");
    write(name, "[1, 2");
    expect_refused(error(), name, "is not valid JSON");
    write(name, "[1, 2]");
    expect_refused(error(), name, "is an array of 2; expected a JSON object");
  }
}

TEST_F(GptFiles, NameTheKeyOfAValueThatDoesNotFit) {
  const std::tuple<const char*, const char*, Json, const char*> cases[] = {
      {"gpt2", "n_layer", std::int64_t{1} << 40, R"(from 1 to 2147483647 for "n_layer", found 1099511627776)"},
      {"gpt2", "n_layer", 1'000'000'000, "says 1000000000 layers"},
      {"gpt2", "n_layer", 1.5, R"("n_layer", found 1.5)"},
      {"gpt2", "n_head", -4, R"("n_head", found -4)"},
      {"gpt2", "n_embd", "x", R"("n_embd", found "x")"},
      {"gpt2", "n_positions", 2'000'000'000, "wpe.weight (file: ["},
      {"gpt2", "vocab_size", 2'000'000'000, "wte.weight (file: ["},
      {"gpt2", "n_inner", 2'000'000'000, "h.0.mlp.c_fc.weight (file: ["},
      {"gpt2", "layer_norm_epsilon", Json::array({1}), R"(a number for "layer_norm_epsilon", found an array of 1)"},
      {"gpt2", "model_type", 7, R"(a string for "model_type", found 7)"},
      {"llama", "rope_scaling", "linear", R"(an object for "rope_scaling", found "linear")"},
      {"llama", "rope_scaling", Json::array({1}), R"(an object for "rope_scaling", found an array of 1)"},
      {"llama", "rope_scaling", {{"type", 7}}, R"("rope_scaling": expected a string for "type", found 7)"},
      {"llama", "rope_scaling", {{"rope_theta", "x"}}, R"(expected a number for "rope_theta", found "x")"},
      {"llama", "max_position_embeddings", 2'000'000'000, R"("max_position_embeddings" is 2000000000)"},
      {"llama", "num_attention_heads", 2'000'000'000, "q_proj.weight (file: ["},
  };
  for (const auto& [model, key, value, part] : cases) {
    allocator(kCPU).reset_peak(Device());
    const std::size_t before = allocator(kCPU).stats(Device()).peak;
    const std::string message = error_with(model, key, value);
    const bool of_weights = message.starts_with("[weights]");
    expect_refused(message, of_weights ? folder_.text().c_str() : "config.json", part);
    EXPECT_EQ(allocator(kCPU).stats(Device()).peak, before) << key;
  }
}

TEST_F(GptFiles, OfAdaptersAreHeldToTheirTensors) {
  copy("gpt2");
  const gpt::LoadedModel loaded = gpt::load_folder(folder_.text());
  gpt::Config config = loaded.model->config();
  config.lora = {.rank = 2, .alpha = 8};
  gpt::save_adapters(*gpt::LanguageModel::make(config), file("good"));
  gpt::load_folder(folder_.text(), file("good"));
  const auto with = [&](const char* key, const char* value) {
    const nn::SafetensorsFile good(file("good"));
    std::vector<nn::NamedTensor> tensors;
    for (const nn::SafetensorsEntry& entry : good.entries()) tensors.push_back({entry.name, good.read(entry.name)});
    nn::Metadata metadata = good.metadata();
    metadata[key] = value;
    nn::save_safetensors(tensors, file("bad"), metadata);
    return error(file("bad"));
  };
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"lora.rank", "300000", "and the model takes [300000, "},
      {"lora.rank", "2.7", "for lora.rank in the metadata, found '2.7'"},
      {"lora.rank", "inf", "for lora.rank in the metadata, found 'inf'"},
      {"lora.rank", "0", "for lora.rank in the metadata, found '0'"},
      {"lora.alpha", "nan", "for lora.alpha in the metadata, found 'nan'"},
      {"lora.alpha", "-1", "for lora.alpha in the metadata, found '-1'"},
  };
  for (const auto& [key, value, part] : cases) {
    const std::string message = with(key, value);
    expect_refused(message, "bad'", part);
    expect_refused(message, "bad'", key);
  }
}

TEST_F(GptFiles, PipesAreNotWaitedFor) {
  for (const char* name : {"train.bin", "vocab.json", "merges.txt"}) {
    copy("gpt2");
    for (const char* tokens : {"train.bin", "val.bin"}) write(tokens, std::string(40, '\0'));
    gpt::open_corpus(folder_.text());
    std::filesystem::remove(file(name));
    ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
    expect_refused(error_of([&] { gpt::open_corpus(folder_.text()); }), name, "is a pipe, not a regular file");
  }
}

TEST_F(GptFiles, TokensBelongToTheVocabulary) {
  for (const char* name : {"train.bin", "val.bin"}) {
    copy("gpt2");
    for (const char* tokens : {"train.bin", "val.bin"}) write(tokens, std::string(40, '\0'));
    write(name, std::string(38, '\0') + "\x60\xea");
    expect_refused(error_of([&] { gpt::open_corpus(folder_.text()); }), name, "is 60000, in a vocabulary of ");
  }
}

TEST_F(GptFiles, TokensThatAreCutOffWhileTheyAreUsedAreAnError) {
  copy("gpt2");
  for (const char* tokens : {"train.bin", "val.bin"}) write(tokens, std::string(40000, '\0'));
  const gpt::Corpus corpus = gpt::open_corpus(folder_.text());
  const gpt::WindowDataset windows(corpus.training, 8);
  const std::string content = windows.content();
  EXPECT_EQ(content, gpt::WindowDataset(corpus.validation, 8).content());
  windows.get_batch(std::vector<std::int64_t>{0, 15000});
  std::filesystem::resize_file(file("train.bin"), 20001);
  windows.get_batch(std::vector<std::int64_t>{0});
  expect_refused(error_of([&] { windows.get_batch(std::vector<std::int64_t>{9999}); }), "train.bin",
                 "had 40000 bytes when it was opened and ends at byte 20001 now");
  write("train.bin", std::string(39999, '\0') + "\1");
  EXPECT_NE(windows.content(), content);
}

TEST(GptParameterShapes, AreThoseOfTheModel) {
  for (const gpt::Family family : {gpt::Family::gpt2, gpt::Family::llama})
    for (const bool tied : {false, true}) {
      gpt::Config config{.family = family, .vocabulary = 13, .context = 7, .layers = 2, .heads = 4, .kv_heads = 2};
      config.head_width = 6;
      config.width = 24;
      config.feedforward = 40;
      config.tied = tied;
      config.lora.rank = tied ? 3 : 0;
      std::map<std::string, Shape> expected, found;
      for (const nn::NamedTensor& p : gpt::LanguageModel::make(config)->named_parameters())
        expected.emplace(p.name, p.tensor.sizes());
      for (const gpt::NamedShape& each : gpt::parameter_shapes(config)) found.emplace(each.name, each.shape);
      EXPECT_EQ(found, expected);
    }
}

}  // namespace
}  // namespace lockstep::testing
