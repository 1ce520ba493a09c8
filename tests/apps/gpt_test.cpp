// The language models of apps/gpt beside what PyTorch and transformers have recorded (scripts/record_transformers.py).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/gpt/generate.h"
#include "apps/gpt/projection.h"
#include "apps/gpt/weights.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

const std::string kFolder = LOCKSTEP_SOURCE_DIR "/tests/golden/gpt";

/// Plain kernels for its lifetime, if asked for.
class ReferenceKernels {
 public:
  explicit ReferenceKernels(bool on) : outer_(reference_kernels()) { set_reference_kernels(on); }
  ~ReferenceKernels() { set_reference_kernels(outer_); }

 private:
  bool outer_;
};

gpt::Config small_config() {
  gpt::Config config;
  config.vocabulary = 61;
  config.context = 24;
  config.layers = 3;
  config.heads = config.kv_heads = 4;
  config.width = 32;
  config.head_width = 8;
  config.feedforward = 128;
  return config;
}

gpt::Config small_llama() {
  gpt::Config config = small_config();
  config.family = gpt::Family::llama;
  config.kv_heads = 2;
  config.tied = false;
  return config;
}

// --- the gold file ------------------------------------------------------------------------------------------------

struct Gold {
  DType dtype;
  bool reference;
  double tolerance, training_tolerance;
};
// On the CPU, and once more on the device (tests/apps/CMakeLists.txt).
class GptGold : public ::testing::TestWithParam<Gold> {
 protected:
  void SetUp() override {
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
    model_->to(test_device());
    x_ = tokens_.narrow(1, 0, 24).contiguous().to(test_device());
    y_ = tokens_.narrow(1, 1, 24).contiguous().to(test_device());
  }
  GptGold() : kernels_(GetParam().reference), model_(gpt::LanguageModel::make(small_config())) {
    std::vector<nn::NamedTensor> weights;
    for (const auto& [key, value] : file_.tensors_of("weights")) weights.push_back({key, value});
    nn::save_safetensors(weights, path_.text());
    gpt::load_weights(*model_, path_.text());
    model_->to(GetParam().dtype);
  }
  Tensor loss() { return model_->loss(x_, y_); }

  const ReferenceKernels kernels_;
  const GoldenFile& file_ = GoldenFile::open("gpt/gold");
  TemporaryPath path_;
  std::unique_ptr<gpt::LanguageModel> model_;
  const Tensor tokens_ = file_.get("batch", "tokens");
  Tensor x_, y_;
};

bool is_transposed_in_files(const std::string& name) {
  return name.find("c_") != std::string::npos && name.ends_with(".weight");
}

TEST_P(GptGold, LogitsAndGradientsEqualPyTorch) {
  expect_golden(model_->forward(x_).detach().cpu(), file_.get("first", "logits"), "logits", GetParam().tolerance);
  loss().backward();
  std::size_t compared = 0;
  for (const nn::NamedTensor& p : model_->named_parameters()) {
    Tensor grad = p.tensor.grad().cpu();
    if (is_transposed_in_files(p.name)) grad = copy_contiguous(grad.t());
    expect_golden(grad, file_.get("first", "grad.transformer." + p.name), p.name, GetParam().tolerance);
    ++compared;
  }
  EXPECT_EQ(compared, 3u * 12u + 4u);
}

TEST_P(GptGold, TenTrainingStepsEqualPyTorch) {
  optim::AdamW optimizer(model_->parameters(), {.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1});
  const std::vector<double> losses = file_.get("training", "losses").to_vector<double>();
  ASSERT_EQ(losses.size(), 10u);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    optimizer.zero_grad();
    const Tensor value = loss();
    value.backward();
    optim::clip_grad_norm_(model_->parameters(), 0.5);
    optimizer.step();
    EXPECT_NEAR(value.item(), losses[step], losses[step] * GetParam().training_tolerance) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Precision, GptGold,
                         ::testing::Values(Gold{kFloat64, false, 1e-6, 1e-9}, Gold{kFloat64, true, 1e-6, 1e-9},
                                           Gold{kFloat32, false, 2e-5, 1e-5}, Gold{kFloat32, true, 2e-5, 1e-5}),
                         [](const auto& info) {
                           return std::string(name(info.param.dtype)) + (info.param.reference ? "_reference" : "");
                         });

// --- models and tokens of transformers ----------------------------------------------------------------------------

class GptFamilies : public ::testing::TestWithParam<const char*> {
 protected:
  gpt::LoadedModel loaded_ = gpt::load_folder(kFolder + "/" + GetParam());
  Tensor recorded(const char* key) { return GoldenFile::open("gpt/models").get(GetParam(), key); }
};
INSTANTIATE_TEST_SUITE_P(Gpt, GptFamilies, ::testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(GptFamilies, LogitsEqualTransformers) {
  const NoGradGuard no_grad;
  expect_golden(loaded_.model->forward(recorded("tokens")), recorded("logits"), "logits", 1e-5);
}

TEST_P(GptFamilies, GreedyContinuationEqualsTransformersWithAndWithoutCache) {
  const auto expected = recorded("generated").to_vector<std::int32_t>();
  const std::vector<std::int32_t> prompt(expected.begin(), expected.begin() + 5),
      rest(expected.begin() + 5, expected.end());
  for (const bool cache : {true, false}) {
    const auto tokens =
        gpt::generate(*loaded_.model, prompt,
                      {.max_tokens = static_cast<std::int64_t>(rest.size()), .temperature = 0.0, .cache = cache});
    EXPECT_EQ(tokens, rest);
  }
}

TEST_P(GptFamilies, GenerationIsTheSameWithAndWithoutCacheBeyondTheContext) {
  const auto run = [&](bool cache) {
    return gpt::generate(*loaded_.model, {1, 2, 3},
                         {.max_tokens = 80, .temperature = 0.9, .top_k = 40, .seed = 4, .cache = cache});
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_EQ(run(true).size(), 80u);
}

TEST_P(GptFamilies, FolderIsWrittenAsItWasRead) {
  const TemporaryPath path;
  gpt::save_folder(path.text(), *loaded_.model, loaded_.tokenizer);
  const gpt::LoadedModel again = gpt::load_folder(path.text());
  EXPECT_EQ(nn::weights_sha256(*again.model), nn::weights_sha256(*loaded_.model));
  EXPECT_EQ(again.tokenizer.encode("Hello world, it's 42."), loaded_.tokenizer.encode("Hello world, it's 42."));
  const nn::SafetensorsFile theirs(kFolder + "/" + GetParam() + "/model.safetensors"),
      ours(path.text() + "/model.safetensors");
  ASSERT_EQ(ours.entries().size(), theirs.entries().size());
  for (const nn::SafetensorsEntry& entry : theirs.entries())
    expect_close(ours.read(entry.name), theirs.read(entry.name), 0, 0);
}

TEST(GptTokenizer, TokensOfOddStringsEqualTransformers) {
  const auto tokenizer = gpt::Tokenizer::from_folder(kFolder + "/gpt2");
  std::ifstream file(kFolder + "/strings.json");
  const auto rows = nlohmann::json::parse(file);
  ASSERT_EQ(rows.size(), 1000u);
  int differing = 0;
  for (const auto& row : rows) {
    const auto text = row[0].get<std::string>();
    const auto tokens = tokenizer.encode(text);
    if (tokens != row[1].get<std::vector<std::int32_t>>() && ++differing < 5) ADD_FAILURE() << row[0].dump();
    EXPECT_EQ(tokenizer.decode(tokens), text);
  }
  EXPECT_EQ(differing, 0);
}

TEST(GptTokenizer, BytesOfATextAreTokensInTheirOrder) {
  const auto tokenizer = gpt::Tokenizer::of_bytes("banana\n");
  EXPECT_EQ(tokenizer.size(), 4);
  EXPECT_EQ(tokenizer.encode("nab\n"), (std::vector<std::int32_t>{3, 1, 2, 0}));
  EXPECT_NE(error_of([&] { tokenizer.encode("x"); }).find("byte 0x78 of 'x' has no token"), std::string::npos);
  EXPECT_NE(error_of([&] { tokenizer.decode(std::vector<std::int32_t>{4}); }).find("4 is no token"), std::string::npos);
}

TEST(GptTokenizer, BytesThatAreNoTextSurvive) {
  const auto tokenizer = gpt::Tokenizer::from_folder(kFolder + "/gpt2");
  const std::string text = "\xff\xc0 \xe2\x82 a\x80\xed\xa0\x80";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

// --- recomputation, pieces of the loss, LoRA ------------------------------------------------------------------------

class GptShapes : public ::testing::TestWithParam<bool> {
 protected:
  gpt::Config config() const { return GetParam() ? small_llama() : small_config(); }
  const Tensor x_ = make_input({3, 20}, 1, kInt64, 0.0, 61.0), y_ = make_input({3, 20}, 2, kInt64, 0.0, 61.0);
};
INSTANTIATE_TEST_SUITE_P(Gpt, GptShapes, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "llama" : "gpt2"; });

TEST_P(GptShapes, RecomputationGivesTheSameBits) {
  const auto run = [&](bool recompute) {
    manual_seed(1);
    gpt::Config shape = config();
    shape.dropout = 0.2;
    shape.recompute = recompute;
    const auto model = gpt::LanguageModel::make(shape);
    const RandomKeyGuard key(1, 0);
    const Tensor loss = model->loss(x_, y_);
    loss.backward();
    std::vector<std::vector<float>> bits{loss.to_vector<float>()};
    for (const Tensor& p : model->parameters()) bits.push_back(p.grad().to_vector<float>());
    return bits;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(GptShapes, AdaptersMoveAloneAndMerge) {
  manual_seed(1);
  gpt::Config shape = config();
  shape.lora = {.rank = 2, .alpha = 8};
  const auto model = gpt::LanguageModel::make(shape);
  gpt::train_adapters_only(*model);
  std::map<std::string, std::vector<float>> before;
  for (const nn::NamedTensor& p : model->named_parameters()) before[p.name] = p.tensor.to_vector<float>();
  std::vector<Tensor> trained = model->parameters();
  std::erase_if(trained, [](const Tensor& p) { return !p.requires_grad(); });
  optim::AdamW optimizer(trained, {.lr = 0.05});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->loss(x_, y_).backward();
    optimizer.step();
  }
  for (const nn::NamedTensor& p : model->named_parameters())
    EXPECT_EQ(p.tensor.to_vector<float>() != before[p.name], p.name.find("lora_") != std::string::npos) << p.name;

  const NoGradGuard no_grad;
  const Tensor logits = model->forward(x_);
  const TemporaryPath file;
  gpt::save_adapters(*model, file.text());
  manual_seed(1);
  const auto other = gpt::LanguageModel::make(shape);  // the same weights, other adapters
  for (const nn::NamedTensor& p : other->named_parameters())
    if (p.name.find("lora_") == std::string::npos)
      for (const nn::NamedTensor& q : model->named_parameters())
        if (p.name == q.name) copy_values(q.tensor, p.tensor.detach());
  gpt::load_adapters(*other, file.text());
  expect_close(other->forward(x_), logits, 0, 0);
  gpt::merge_adapters(*model);
  expect_close(model->forward(x_), logits, 1e-4, 1e-5);
  EXPECT_NE(model->named_parameters().front().tensor.numel(), 0);
}

TEST(GptLoss, OfALargeVocabularyComesInPieces) {
  gpt::Config config = small_config();
  config.layers = 1;
  config.logits_at_once = 1000;  // of 80 x 61
  manual_seed(1);
  const auto model = gpt::LanguageModel::make(config);
  const Tensor x = make_input({4, 20}, 1, kInt64, 0.0, 61.0), y = make_input({4, 20}, 2, kInt64, 0.0, 61.0);
  const auto run = [&](const std::function<Tensor()>& loss) {
    model->zero_grad(true);
    const Tensor value = loss();
    value.backward();
    return std::pair(value.item(), copy_contiguous(model->parameters().front().grad()));
  };
  const auto [value, grad] = run([&] { return model->loss(x, y); });
  const auto [expected, expected_grad] = run([&] {
    return cross_entropy(model->forward(x).view({80, 61}), y.view({80}));
  });
  EXPECT_NEAR(value, expected, 1e-5 * expected);
  EXPECT_LT((grad - expected_grad).abs().max().item(), 1e-5 * expected_grad.abs().max().item());
}

TEST(GptLoss, InPiecesLeavesAFrozenVocabularyFrozen) {
  gpt::Config config = small_config();
  config.layers = 1;
  config.lora = {.rank = 2, .alpha = 8};
  config.logits_at_once = 1000;  // of 80 x 61
  manual_seed(1);
  const auto model = gpt::LanguageModel::make(config);
  gpt::train_adapters_only(*model);
  const Tensor x = make_input({4, 20}, 1, kInt64, 0.0, 61.0), y = make_input({4, 20}, 2, kInt64, 0.0, 61.0);
  model->loss(x, y).backward();
  for (const nn::NamedTensor& p : model->named_parameters()) {
    const bool is_adapter = p.name.find("lora_") != std::string::npos;
    EXPECT_EQ(p.tensor.requires_grad(), is_adapter) << p.name;
    EXPECT_EQ(p.tensor.grad().defined(), is_adapter) << p.name;
  }
}

TEST(GptErrors, NameTheProblem) {
  const auto model = gpt::LanguageModel::make(small_config());
  gpt::Config bad = small_config();
  bad.heads = 5;
  const TemporaryPath file;
  nn::save_safetensors({{"transformer.wte.weight", ones({3, 2})}, {"odd", ones({1})}}, file.text());
  const std::pair<std::string, const char*> cases[] = {
      {error_of([&] { gpt::LanguageModel::make(bad); }), "5 heads do not divide the width 32"},
      {error_of([&] { gpt::preset("huge"); }), "nano, small, gpt2, found 'huge'"},
      {error_of([&] { gpt::load_folder("/nonexistent"); }), "'/nonexistent' is no folder"},
      {error_of([&] { gpt::load_weights(*model, file.text()); }),
       "unexpected: odd; of another shape: wte.weight (file: [3, 2]"},
      {error_of([&] { gpt::load_adapters(*model, file.text()); }), "holds no adapters"},
      {error_of([&] {
         model->forward(zeros({1, 25}, {.dtype = kInt64}));
       }),
       "more than the context of 24"},
      {error_of([&] { gpt::generate(*model, {}); }), "a prompt of at least one token"},
      {error_of([&] { gpt::train_adapters_only(*model); }), "the model has no adapters"},
  };
  for (const auto& [message, part] : cases) EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing
