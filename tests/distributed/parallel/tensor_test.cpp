// Layers divided over ranks against one process: values, gradients, whole trainings, and the same bits on every number
// of ranks.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <mutex>

#include "lockstep/core/random.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "tests/distributed/parallel/tensor_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

struct Training {
  std::int64_t shards = 0;  ///< T
  bool adam = true;
  double clip = 0.0;
  double dropout = 0.0;
  DType dtype = kFloat32;
  Tokens tokens = Tokens::all;
  Sizes sizes = {};
};

/// The whole weights after a training on a group.
Values train(const Training& training, const ProcessGroupPtr& group) {
  Transformer model(training.dropout, training.sizes);
  set_weights(model);
  model.to(training.dtype);
  const TensorParallel parallel(model, plan_of(training.tokens), options_of(training.tokens, group, training.shards));
  const auto optimizer = make_optimizer(training.adam, model.parameters());
  for (std::int64_t i = 0; i < kTensorSteps; ++i) {
    const RandomKeyGuard key(static_cast<std::uint64_t>(i), 0);
    const data::Batch batch = tokens_of(7 - i % 2, static_cast<std::uint32_t>(i + 1), training.sizes.vocabulary);
    model.zero_grad(/*set_to_none=*/true);
    loss_of(parallel, model, batch).backward();
    if (training.clip > 0.0) {
      EXPECT_GT(parallel.clip_grad_norm(training.clip), training.clip) << "the row must clip";
    }
    optimizer->step();
  }
  return values_of(parallel.full_state());
}

// --- rows of docs/equivalence.md ---------------------------------------------------------------------------------

struct Row {
  const char* feature;
  double bound;
  Training training;
  std::vector<int> worlds;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.feature;
}

// A gradient that is 0 but for rounding, as that of the keys' bias, is as large a step as any for Adam: in float64, its
// rounding is small beside Adam's eps.
const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      {"tensor 2, SGD", 1e-6, {.adam = false}, {2}},
      {"tensor 2, SGD, clipping", 1e-6, {.adam = false, .clip = 0.05}, {2}},
      {"tensor 4, SGD", 1e-6, {.adam = false}, {4}},
      {"tensor 2, AdamW, clipping, float64", 1e-9, {.clip = 0.05, .dtype = kFloat64}, {2}},
      {"tensor 2, SGD, dropout", 1e-6, {.adam = false, .dropout = 0.1}, {2}},
      {"tensor 4, AdamW, clipping, dropout, float64", 1e-9, {.clip = 0.05, .dropout = 0.1, .dtype = kFloat64}, {4}},
      {"tensor 4, AdamW, clipping, float64", 1e-9, {.clip = 0.05, .dtype = kFloat64}, {4}},
      {"tensor shards on 1, 2, 4 ranks, SGD", 0.0, {.shards = 4, .adam = false}, {1, 2, 4}},
      {"tensor shards on 1, 2, 4 ranks, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1},
       {1, 2, 4}},
      {"sequence parallel, tensor 2, SGD, dropout",
       1e-6,
       {.adam = false, .dropout = 0.1, .tokens = Tokens::own_between_layers},
       {2}},
      {"sequence parallel, tensor 4, AdamW, clipping, dropout, float64",
       1e-9,
       {.clip = 0.05, .dropout = 0.1, .dtype = kFloat64, .tokens = Tokens::own_between_layers},
       {4}},
      {"sequence parallel, tensor shards on 1, 2, 4 ranks, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .tokens = Tokens::own_between_layers},
       {1, 2, 4}},
      {"context parallel 2, SGD, dropout", 1e-6, {.adam = false, .dropout = 0.1, .tokens = Tokens::own}, {2}},
      {"context parallel 4, AdamW, clipping, dropout, float64",
       1e-9,
       {.clip = 0.05, .dropout = 0.1, .dtype = kFloat64, .tokens = Tokens::own, .sizes = kUneven},
       {4}},
      {"context parallel 2 and 4, columns between layers, AdamW, clipping, dropout, float64",
       1e-9,
       {.clip = 0.05, .dropout = 0.1, .dtype = kFloat64, .tokens = Tokens::own_or_columns},
       {2, 4}},
      {"context parallel, token shards on 1, 2, 4 ranks, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .tokens = Tokens::own, .sizes = kUneven},
       {1, 2, 4}},
      {"context parallel, columns between layers, token shards on 1, 2, 4 ranks, SGD, dropout",
       0.0,
       {.shards = 4, .adam = false, .dropout = 0.1, .tokens = Tokens::own_or_columns},
       {1, 2, 4}},
      {"tensor 2 and 4, uneven sizes, AdamW, clipping, dropout, float64",
       1e-9,
       {.clip = 0.05, .dropout = 0.1, .dtype = kFloat64, .sizes = kUneven},
       {2, 4}},
      {"tensor shards on 1, 2, 4 ranks, uneven sizes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .sizes = kUneven},
       {1, 2, 4}},
      {"sequence parallel, tensor shards on 1, 2, 4 ranks, uneven sizes, SGD, dropout",
       0.0,
       {.shards = 4, .adam = false, .dropout = 0.1, .tokens = Tokens::own_between_layers, .sizes = kUneven},
       {1, 2, 4}},
  };
  return rows;
}

class TensorEquivalenceOf : public ::testing::TestWithParam<Row> {};

TEST_P(TensorEquivalenceOf, WeightsAreThoseOfOneProcess) {
  const Row& row = GetParam();
  const Values one = row.training.shards > 0 ? train(row.training, make_single_process_group())
                                             : train_alone(row.training.adam, row.training.clip, row.training.dtype,
                                                           row.training.dropout, row.training.sizes);
  double largest = 0.0;
  std::mutex mutex;
  for (const int world : row.worlds)
    run_in(world, [&](const ProcessGroupPtr& group) {
      const double difference = largest_difference(train(row.training, group), one);
      const std::lock_guard lock(mutex);
      EXPECT_LE(difference, row.bound) << world << " ranks";
      largest = std::max(largest, difference);
    });
  RecordProperty("largest_difference", fmt::format("{:.1e}", largest));
  std::printf("| %s | %.0e | %.1e |\n", row.feature, row.bound, largest);
}

INSTANTIATE_TEST_SUITE_P(Features, TensorEquivalenceOf, ::testing::ValuesIn(table()), [](const auto& info) {
  std::string name = info.param.feature;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// What the rows would show: other sums, another number of shards, other masks, another optimizer.
TEST(TensorEquivalence, ATableOfOtherSumsFails) {
  const ProcessGroupPtr alone = make_single_process_group();
  const Training training{.shards = 4};
  const Values shards = train(training, alone);
  EXPECT_GT(largest_difference(train({.shards = 2}, alone), shards), 0.0);
  EXPECT_GT(largest_difference(train({.shards = 4, .dropout = 0.1}, alone), shards), 1e-3);
  EXPECT_GT(largest_difference(train({.shards = 4, .adam = false}, alone), shards), 1e-3);
  // In the order of ranks, four are added up in another order than the tree's.
  run_in(4, [&](const ProcessGroupPtr& group) { EXPECT_GT(largest_difference(train({}, group), shards), 0.0); });
}

// --- the functions -------------------------------------------------------------------------------------------------

using Function = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;

/// Values and gradients, x's and the parameters', of the sum of what `function` gives times `factors`.
Values results_of(const Function& function, const Tensor& factors, const Tensor& x, const Tensor& weight,
                  const Tensor& bias) {
  const Tensor leaves[] = {copy_contiguous(x), copy_contiguous(weight), copy_contiguous(bias)};
  for (const Tensor& leaf : leaves) leaf.set_requires_grad(true);
  const Tensor y = function(leaves[0], leaves[1], leaves[2]);
  (y * copy_contiguous(factors)).sum().backward();
  Values results{y.to_vector<double>()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad().to_vector<double>());
  return results;
}

/// Columns [begin, begin + count) of what is a matrix of `width` columns.
std::vector<double> columns_of(const std::vector<double>& values, std::int64_t width, std::int64_t begin,
                               std::int64_t count) {
  std::vector<double> found;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const auto column = static_cast<std::int64_t>(i) % width; column >= begin && column < begin + count)
      found.push_back(values[i]);
  return found;
}

void expect_near(const Values& own, const Values& expected) {
  EXPECT_LT(largest_difference(own, expected), 1e-5);
}

// Outputs and inputs that not every number of ranks divides.
TEST(TensorLinear, OfAllRanksIsTheLayer) {
  const Tensor x = make_input({5, 3, 8}, 1, kFloat32), weight = make_input({12, 8}, 2, kFloat32),
               bias = make_input({12}, 3, kFloat32), factors = make_input({5, 3, 12}, 4, kFloat32);
  const Values all = results_of([](const auto&... t) { return linear(t...); }, factors, x, weight, bias);
  for (const int world : {1, 2, 3, 4, 5})
    run_in(world, [&](const ProcessGroupPtr& group) {
      const TensorShards shards(group, 0);
      const auto [from, out] = shards.run_of(12, group->rank());
      expect_near(results_of([&](const auto&... t) { return column_parallel_linear(t..., shards); },
                             factors.as_strided({5, 3, out}, {36, 12, 1}, from), x, rows(weight, from, out),
                             rows(bias, from, out)),
                  {columns_of(all[0], 12, from, out), all[1], columns_of(all[2], 96, from * 8, out * 8),
                   columns_of(all[3], 12, from, out)});
      const auto [at, in] = shards.run_of(8, group->rank());
      expect_near(results_of([&](const auto&... t) { return row_parallel_linear(t..., shards); }, factors,
                             x.as_strided({5, 3, in}, {24, 8, 1}, at), weight.as_strided({12, in}, {8, 1}, at), bias),
                  {all[0], columns_of(all[1], 8, at, in), columns_of(all[2], 8, at, in), all[3]});
    });
}

// A head whose logits the model goes on with: by the plan, and as a function, with the gradients of the whole layer.
TEST(TensorLinear, OutputsMayBeGathered) {
  struct Headed : nn::Module {
    explicit Headed(std::int64_t classes = 12) : head(this, "head", 8, classes, {.bias = false}) {}
    nn::Linear body{this, "body", 6, 8}, head;
  };
  const Tensor x = make_input({5, 4, 6}, 1, kFloat32);
  const auto results = [&](const ProcessGroupPtr& group, std::int64_t classes, std::int64_t logical, bool tokens,
                           bool by_plan) {
    const Tensor factors = make_input({5, 4, classes}, 4, kFloat32);
    Headed model(classes);
    set_weights(model);
    const TensorParallel divided(model, {{.layers = "head", .split = TensorSplit::column, .gathers = by_plan}},
                                 {.group = group, .logical_shards = logical, .sequence_parallel = tokens});
    const Tensor hidden = divided.own_tokens(relu(model.body(x)));
    const Tensor logits = by_plan ? model.head(hidden) : divided.logits(hidden, model.head.weight);
    (log_softmax(logits, -1) * factors).sum().backward();
    return Values{logits.to_vector<double>(), model.body.weight.grad().to_vector<double>(),
                  divided.whole_of(model.head.weight, model.head.weight.grad()).to_vector<double>()};
  };
  {
    Headed undivided;
    const TensorParallel divided(undivided, {{.layers = "body", .split = TensorSplit::column, .gathers = true}},
                                 {.group = make_single_process_group()});
    EXPECT_NE(lockstep::testing::error_of([&] {
                divided.logits(undivided.body(x), undivided.head.weight);
              }).find("[12, 8] that is none of the divided parameters"),
              std::string::npos);
  }
  for (const std::int64_t classes : {12, 13}) {
    Headed model(classes);
    set_weights(model);
    const Tensor logits = model.head(relu(model.body(x)));
    (log_softmax(logits, -1) * make_input({5, 4, classes}, 4, kFloat32)).sum().backward();
    const Values whole{logits.to_vector<double>(), model.body.weight.grad().to_vector<double>(),
                       model.head.weight.grad().to_vector<double>()};
    for (const bool by_plan : {true, false})
      for (const bool tokens : {true, false}) {
        const Values four = results(make_single_process_group(), classes, 4, tokens, by_plan);
        expect_near(four, whole);
        for (const int world : {1, 2, 3, 4})
          run_in(world, [&](const ProcessGroupPtr& group) {
            if (!tokens || world != 3) expect_near(results(group, classes, 0, tokens, by_plan), whole);
            if (world == 3) return;
            EXPECT_EQ(largest_difference(results(group, classes, 4, tokens, by_plan), four), 0.0) << world;
          });
      }
  }
  Headed model;
  const auto refused = [&](const TensorRule& rule) { return error_of([&] { TensorParallel(model, {rule}, {}); }); };
  for (const TensorRule& rule : {TensorRule{.layers = "head", .split = TensorSplit::row, .gathers = true},
                                 TensorRule{.layers = "head", .parts = 3, .gathers = true}})
    EXPECT_NE(refused(rule).find("only a column layer of one part can"), std::string::npos);
}

TEST(TensorVocabulary, LossesAreThoseOfTheWholeSoftmax) {
  for (const auto& [all, fourth] : {std::pair<std::int64_t, std::int64_t>{12, 6}, {13, 6}, {13, -100}}) {
    const Tensor logits = make_input({6, all}, 4, kFloat32, -30.0, 30.0);
    const Tensor target = tensor(std::vector<std::int64_t>{0, all - 1, 5, fourth, 3, 3});
    const Tensor undivided = copy_contiguous(logits);
    undivided.set_requires_grad(true);
    const Tensor expected = cross_entropy(undivided, target);
    (expected * 2.0).backward();
    std::vector<double> first;  // of lockstep mode
    for (const int world : {1, 2, 4})
      for (const std::int64_t logical : {0, 4})
        run_in(world, [&, all = all](const ProcessGroupPtr& group) {
          const TensorShards shards(group, logical);
          const auto [begin, classes] = shards.run_of(all, group->rank());
          const Tensor own = copy_contiguous(logits.as_strided({6, classes}, {all, 1}, begin));
          own.set_requires_grad(true);
          const Tensor loss = vocabulary_parallel_cross_entropy(own, target, shards, all);
          (loss * 2.0).backward();
          EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
          const std::vector<double> grad = own.grad().to_vector<double>(), whole = undivided.grad().to_vector<double>();
          const Values here{{loss.item<double>()}, grad};
          for (std::int64_t i = 0; i < own.numel(); ++i)
            EXPECT_NEAR(grad[static_cast<std::size_t>(i)],
                        whole[static_cast<std::size_t>(i / classes * all + begin + i % classes)], 1e-6);
          if (logical > 0 && world > 1) {
            EXPECT_EQ(largest_difference(
                          here, {{first[0]}, columns_of({first.begin() + 1, first.end()}, all, begin, classes)}),
                      0.0)
                << world;
          }
          if (world > 1) return;
          if (logical > 0) {
            first = {loss.item<double>()};
            first.insert(first.end(), grad.begin(), grad.end());
          }
          for (const std::int64_t wrong : {std::int64_t{-1}, all, std::int64_t{-101}}) {
            const Tensor index = tensor(std::vector<std::int64_t>(6, wrong));
            EXPECT_NE(error_of([&] {
                        vocabulary_parallel_cross_entropy(own, index, shards);
                      }).find(fmt::format("a target is outside of the {} classes", all)),
                      std::string::npos);
            EXPECT_NE(error_of([&] {
                        vocabulary_parallel_embedding(zeros({all, 2}), index, shards);
                      }).find(fmt::format("an index is outside of the {} rows", all)),
                      std::string::npos);
          }
        });
  }
}

TEST(TensorParallelErrors, NameTheLayerBeforeAnythingChanges) {
  run_in(3, [](const ProcessGroupPtr& group) {
    Transformer model;
    const auto refused = [&](const std::vector<TensorRule>& plan, std::int64_t logical = 0) {
      return error_of([&] { TensorParallel(model, plan, {.group = group, .logical_shards = logical}); });
    };
    EXPECT_EQ(
        refused({{"attention", TensorSplit::heads}}),
        "[TensorParallel] the 4 heads of 'attention.in_proj_weight' cannot be divided evenly into 3 tensor shards");
    Transformer small(0.0, {.vocabulary = 2, .inner = 2});
    for (const auto& [rule, message] :
         {std::pair{TensorRule{"up", TensorSplit::column}, "the 2 outputs of 'up.weight'"},
          {{"down", TensorSplit::row}, "the 2 inputs of 'down.weight'"},
          {{"table", TensorSplit::vocabulary}, "the 2 rows of 'table.weight'"}})
      EXPECT_EQ(
          error_of([&, &rule = rule] { TensorParallel(small, {rule}, {.group = group}); }),
          fmt::format("[TensorParallel] {} are fewer than the 3 tensor shards, of which each needs one", message));
    EXPECT_EQ(small.table.weight.size(0), 2);
    struct Dropping : nn::Module {
      nn::Linear one{this, "one", 2, 13}, two{this, "two", 2, 14};
      nn::Dropout drop{this, "drop"};
    } dropping;
    EXPECT_NE(error_of([&] {
                TensorParallel(dropping, {{"*", TensorSplit::column}}, {.group = group});
              }).find("cannot tell a layer of 13 outputs from one of 14, of which rank 0 has 5 each"),
              std::string::npos);
    EXPECT_NE(refused({{"*.up", TensorSplit::column}}).find("no layer of the model is called '*.up'"),
              std::string::npos);
    EXPECT_NE(refused({{"norm1", TensorSplit::row}})
                  .find("layer 'norm1' is a lockstep::nn::LayerNorm; the plan divides "
                        "it as a nn::Linear"),
              std::string::npos);
    EXPECT_NE(refused({{"table", TensorSplit::vocabulary}, {"*", TensorSplit::vocabulary}}), "");
    EXPECT_NE(refused(kPlan, 4).find("4 tensor shards cannot be divided evenly over 3 ranks"), std::string::npos);
    EXPECT_NE(refused(kPlan, 2).find("2"), std::string::npos);
    EXPECT_EQ(model.up.weight.size(0), 32);
    group->barrier()->wait();
  });
  nn::MultiheadAttention dropping(8, 2, {.dropout = 0.1});
  EXPECT_NE(error_of([&] {
              const nn::Linear::Function same = [](const auto& x, const auto&, const auto&) { return x; };
              dropping.set_projection(same, same, 1, 2);
            }).find("1 heads from number 2 on are no part of 2"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
