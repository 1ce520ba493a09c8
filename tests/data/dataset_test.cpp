// Batches of named tensors, and data sets whose samples are made one by one.

#include "lockstep/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/sampler.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;

void contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Batch, HasTheSizeOfWhateverItHas) {
  EXPECT_EQ(Batch{}.size(), 0);
  EXPECT_EQ(Batch{.x = zeros({3, 2})}.size(), 3);
  EXPECT_EQ(Batch{.y = zeros({4})}.size(), 4);
  const Batch batch{.tensors = {{"image", zeros({5, 2, 2})}, {"tokens", zeros({5, 7}, {.dtype = kInt64})}}};
  EXPECT_EQ(batch.size(), 5);
  EXPECT_EQ(batch["tokens"].dtype(), kInt64);
  contains(error_of([&] { (void)batch["token"]; }), "there is no tensor 'token'; this batch has image, tokens");
  contains(error_of([&] { (void)batch["x"]; }), "there is no tensor 'x'");
  const Batch named{.tensors = {{"lens", zeros({2})}, {"x", zeros({2, 3})}, {"y", ones({2})}}};
  EXPECT_EQ(named["x"].sizes(), (Shape{2, 3}));
  EXPECT_EQ(named["y"].to_vector<float>(), (std::vector<float>{1, 1}));
  Batch twice = named;
  twice.y = zeros({2});
  contains(error_of([&] { (void)twice.size(); }), "[Batch] 'y' is both a member and in `tensors`; keep one of them");
  contains(error_of([&] { (void)Batch{.x = zeros({3}), .y = zeros({4})}.size(); }), "'y' has 4 samples and 'x' has 3");
  contains(error_of([&] { (void)Batch{.x = zeros({})}.size(); }), "'x' has no dimension");
}

TEST(TensorDataset, GathersRows) {
  const Tensor x = lockstep::testing::make_input({5, 2, 3}, 3, kFloat32);
  const Tensor y = arange(5);
  const std::vector<std::int64_t> order = {4, 0, 4};
  const Batch batch = TensorDataset(lockstep::testing::make_strided(x), y).get_batch(order);
  EXPECT_EQ(batch.x.sizes(), (Shape{3, 2, 3}));
  EXPECT_EQ(batch.y.to_vector<std::int64_t>(), order);
  lockstep::testing::expect_close(rows(batch.x, 0, 1), rows(x, 4, 1), 0.0, 0.0);
  lockstep::testing::expect_close(rows(batch.x, 1, 1), rows(x, 0, 1), 0.0, 0.0);
  EXPECT_EQ(TensorDataset(x, y).get_batch({}).x.sizes(), (Shape{0, 2, 3}));
}

TEST(TensorDataset, RefusesTensorsThatDoNotFit) {
  EXPECT_EQ(error_of([] {
              TensorDataset(zeros({3, 2}), zeros({4}));
            }),
            "[TensorDataset] x has 3 samples and y has 4; expected the same number");
  EXPECT_NE(error_of([] { TensorDataset({}, zeros({4})); }).find("x is undefined"), std::string::npos);
  EXPECT_NE(error_of([] { TensorDataset(zeros({4}), zeros({})); }).find("y has no dimension"), std::string::npos);
  const TensorDataset set(zeros({3, 2}), zeros({3}));
  const std::vector<std::int64_t> bad = {3};
  EXPECT_EQ(error_of([&] { set.get_batch(bad); }), "[TensorDataset] index 3 is out of range; expected 0 to 2");
}

TEST(TensorDataset, TakesNamedTensorsAndNoTargets) {
  TensorDataset named({.y = tensor<std::int64_t>({7, 8, 9}), .tensors = {{"mask", tensor<float>({1, 0, 1})}}});
  const std::int64_t indices[] = {2, 0};
  const Batch batch = named.get_batch(indices);
  EXPECT_EQ(batch.y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{9, 7}));
  EXPECT_EQ(batch["mask"].to_vector<double>(), (std::vector<double>{1, 1}));
  EXPECT_EQ(TensorDataset(tensor<float>({1, 2})).get_batch({}).size(), 0);
  contains(error_of([] {
             TensorDataset({.tensors = {{"a", zeros({2})}, {"b", zeros({3})}}});
           }),
           "a has 2 samples and b has 3");
}

// Sample i has i + 1 tokens.
struct Sentences : MapDataset {
  std::int64_t size() const override { return 5; }
  Batch get(std::int64_t index) const override {
    return {.y = full({}, static_cast<double>(index), {.dtype = kInt64}),
            .tensors = {{"tokens", full({index + 1}, static_cast<double>(index), {.dtype = kInt32})}}};
  }
};

Batch padded(const std::vector<Batch>& samples) {
  std::int64_t longest = 0;
  for (const Batch& sample : samples) longest = std::max(longest, sample["tokens"].numel());
  std::vector<Batch> alike;
  for (const Batch& sample : samples) {
    const Tensor& tokens = sample["tokens"];
    const Tensor row = full({longest}, -1.0, {.dtype = kInt32});
    copy_values(tokens, rows(row, 0, tokens.numel()));
    alike.push_back({.y = sample.y, .tensors = {{"tokens", row}}});
  }
  return default_collate(alike);
}

TEST(MapDataset, IsCollated) {
  const DataLoader loader(std::make_shared<Sentences>(),
                          {.batch_size = 2, .shuffle = false, .collate_fn = padded, .num_workers = 2});
  std::vector<std::vector<double>> tokens;
  std::vector<Shape> shapes;
  for (const Batch& batch : loader.epoch(0)) {
    tokens.push_back(batch["tokens"].to_vector<double>());
    shapes.push_back(batch.y.sizes());
    EXPECT_EQ(batch.global_size, batch.size());
  }
  EXPECT_EQ(tokens, (std::vector<std::vector<double>>{{0, -1, 1, 1}, {2, 2, 2, -1, 3, 3, 3, 3}, {4, 4, 4, 4, 4}}));
  EXPECT_EQ(shapes, (std::vector<Shape>{{2}, {2}, {1}}));
}

TEST(MapDataset, PartsWithoutSamplesHaveTheUsualShape) {
  const DataLoader loader(std::make_shared<Sentences>(),
                          {.batch_size = 4, .shuffle = false, .collate_fn = padded, .rank = 1, .world_size = 2});
  std::vector<std::int64_t> sizes;
  for (const Batch& batch : loader.epoch(0)) {
    sizes.push_back(batch.size());
    EXPECT_EQ(batch["tokens"].dim(), 2);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 0}));
}

TEST(MapDataset, SamplesThatDifferNeedACollateFunction) {
  const std::int64_t indices[] = {0, 3};
  contains(
      error_of([&] { Sentences().get_batch(indices); }),
      "'tokens' is int32 [4] in sample 1 of the batch and int32 [1] in sample 0; give the DataLoader a collate_fn");
  contains(error_of([&] { Sentences().get_samples(std::array<std::int64_t, 1>{5}); }), "index 5 is out of range");
}

// The samples of a data set that makes whole batches can be collated too.
TEST(DataLoader, CollatesTheRowsOfABatch) {
  const auto set = std::make_shared<TensorDataset>(tensor<float>({1, 2, 3, 4}).as_strided({2, 2}, {2, 1}, 0),
                                                   tensor<std::int64_t>({5, 6}));
  const auto reversed = [](std::vector<Batch> samples) {
    std::reverse(samples.begin(), samples.end());
    return default_collate(samples);
  };
  const DataLoader loader(set, {.batch_size = 2, .shuffle = false, .collate_fn = reversed});
  for (const Batch& batch : loader.epoch(0)) {
    EXPECT_EQ(batch.x.to_vector<double>(), (std::vector<double>{3, 4, 1, 2}));
    EXPECT_EQ(batch.y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{6, 5}));
  }
  const DataLoader wrong(set, {.batch_size = 2, .collate_fn = [](const std::vector<Batch>& samples) {
                                 return default_collate({samples[0]});
                               }});
  contains(error_of([&] { (void)wrong.epoch(0).begin(); }), "2 samples were asked for, and a batch of 1 came back");
}

// With logical shards, of which a rank has some, a shard is padded, and draws, by itself: the same for any number of
// ranks.
TEST(DataLoader, MakesEachLogicalShardOfItsOwnSamples) {
  const auto rows_for = [](int ranks, const DataLoaderOptions& given) {
    std::vector<double> rows;
    for (int rank = 0; rank < ranks; ++rank) {
      DataLoaderOptions options = given;
      options.batch_size = 6;
      options.rank = rank;
      options.world_size = ranks;
      options.logical_shards = 4;
      const auto set = std::make_shared<TensorDataset>(zeros({6, 2}));
      for (const Batch& batch : DataLoader(set, options).epoch(0))
        for (const double value : batch.x.to_vector<double>()) rows.push_back(value);
    }
    return rows;
  };
  const auto drawn = [](const std::vector<Batch>& samples) {
    Batch batch = default_collate(samples);
    batch.x = rand({batch.x.size(0), 2});
    return batch;
  };
  const auto noisy = [](const Tensor& x, AugmentContext&) { return rand({x.size(0), 2}); };
  for (const DataLoaderOptions& options :
       {DataLoaderOptions{.collate_fn = drawn}, DataLoaderOptions{.transforms = {noisy}}}) {
    const std::vector<double> one = rows_for(1, options);
    EXPECT_EQ(one.size(), 12u);
    for (const int ranks : {2, 3, 4}) EXPECT_EQ(rows_for(ranks, options), one) << ranks;
  }
  const DataLoader uneven(std::make_shared<Sentences>(),
                          {.batch_size = 5, .shuffle = false, .collate_fn = padded, .logical_shards = 4});
  contains(error_of([&] { (void)uneven.epoch(0).begin(); }), "pad to a length that does not depend on the batch");
  const auto error_with = [](const Collate& collate) {
    const auto set = std::make_shared<TensorDataset>(zeros({6, 2}));
    const DataLoader loader(
        set, {.batch_size = 6, .shuffle = false, .collate_fn = collate, .num_workers = 0, .logical_shards = 4});
    return error_of([&] { (void)loader.epoch(0).begin(); });
  };
  contains(error_with([](const std::vector<Batch>& samples) {
             Batch batch = default_collate(samples);
             if (samples.size() == 2) batch.tensors["mask"] = zeros({2});
             return batch;
           }),
           "'mask' is float32 [2] in one shard and missing in another; make the same tensors for every shard");
  contains(error_with([](const std::vector<Batch>& samples) {
             Batch batch = default_collate(samples);
             if (samples.size() == 2) batch.x = cast_values(batch.x, kFloat64);
             return batch;
           }),
           "'x' is float64 [2, 2] in one shard and float32 [1, 2] in another; give the tensor one dtype");
}

// `count` samples from `first` on, each its number, alike in x and y.
std::shared_ptr<const Dataset> numbered(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
  return std::make_shared<TensorDataset>(tensor(numbers), tensor(numbers));
}

std::vector<std::int64_t> numbers_of(const Dataset& set, std::vector<std::int64_t> indices) {
  const Batch batch = set.get_batch(indices);
  EXPECT_EQ(batch.size(), static_cast<std::int64_t>(indices.size()));
  const auto samples = set.get_samples(indices);
  for (std::size_t i = 0; i < samples.size(); ++i)
    EXPECT_EQ(samples[i].x.item<std::int64_t>(), batch.y.to_vector<std::int64_t>()[i]);
  return batch.x.to_vector<std::int64_t>();
}

TEST(SetsOfOthers, HaveTheirSamples) {
  using Numbers = std::vector<std::int64_t>;
  const Subset some(numbered(10, 5), {4, 0, 4});
  EXPECT_EQ(numbers_of(some, {0, 1, 2, 1}), (Numbers{14, 10, 14, 10}));
  EXPECT_EQ(numbers_of(some, {}), Numbers{});
  const ConcatDataset all({numbered(0, 3), numbered(0, 0), numbered(20, 2)});
  EXPECT_EQ(all.size(), 5);
  EXPECT_EQ(numbers_of(all, {4, 0, 3, 2, 4}), (Numbers{21, 0, 20, 2, 21}));
  EXPECT_EQ(numbers_of(all, {}), Numbers{});
  EXPECT_EQ(some.content(), Subset(numbered(10, 5), {4, 0, 4}).content());
  EXPECT_NE(some.content(), Subset(numbered(10, 5), {0, 4, 4}).content());
  EXPECT_NE(all.content(), "");

  const auto parts = random_split(numbered(0, 10), {7, 0, 3}, 5), again = random_split(numbered(0, 10), {7, 0, 3}, 5);
  ASSERT_EQ(parts.size(), 3u);
  Numbers seen;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parts[i]->indices(), again[i]->indices());
    seen.insert(seen.end(), parts[i]->indices().begin(), parts[i]->indices().end());
  }
  EXPECT_EQ(parts[0]->size(), 7);
  EXPECT_NE(seen, random_split(numbered(0, 10), {10}, 6)[0]->indices());
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));

  contains(error_of([] { Subset(numbered(0, 3), {0, 3}); }), "[Subset] index 3 is out of range; expected 0 to 2");
  contains(error_of([&] { (void)all.get_batch(Numbers{5}); }), "[ConcatDataset] index 5 is out of range");
  contains(error_of([] { ConcatDataset({}); }), "at least one dataset");
  contains(error_of([] {
             random_split(numbered(0, 3), {2, 2});
           }),
           "the sizes add up to 4, expected those of the dataset");
}

// What a loader gives a rank with logical shards is what it gives one that has none.
TEST(SetsOfOthers, AreLoadedInLogicalShards) {
  const std::shared_ptr<const Dataset> plain = numbered(0, 23);
  const auto subset = std::make_shared<Subset>(plain, epoch_permutation(23, 0, 0));
  for (const std::shared_ptr<const Dataset>& set : {plain, std::shared_ptr<const Dataset>(subset)})
    for (const int rank : {0, 1, 2}) {
      const DataLoaderOptions options{.batch_size = 9, .shuffle = false, .rank = rank, .world_size = 3};
      DataLoaderOptions whole = options, sharded = options;
      whole.rank = 0;
      whole.world_size = 1;
      sharded.logical_shards = 4;
      auto epoch = DataLoader(set, whole).epoch(0);
      std::vector<Batch> batches;
      for (const Batch& batch : epoch) batches.push_back(batch);
      std::size_t step = 0;
      auto parts = DataLoader(set, sharded).epoch(0);
      for (const Batch& part : parts) {
        const Batch& all = batches[step++];
        const Range shards = partition(4, 3, rank);
        const std::int64_t begin = partition(all.size(), 4, shards.begin).begin;
        const std::int64_t end = partition(all.size(), 4, shards.end - 1).end;
        EXPECT_EQ(part.x.to_vector<std::int64_t>(), rows_of(all, begin, end - begin).x.to_vector<std::int64_t>());
        EXPECT_EQ(part.global_size, all.size());
      }
      EXPECT_EQ(step, 3u);
    }
}

}  // namespace
}  // namespace lockstep::data
