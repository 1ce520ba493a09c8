#include "lockstep/data/data_loader.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace lockstep::data;  // NOLINT
using namespace std::chrono_literals;

using Indices = std::vector<std::int64_t>;

/// y is the sample's index, x four values made from it. Batches take `delay` longer the earlier they are, so that
/// workers finish out of order.
class IndexDataset : public Dataset {
 public:
  explicit IndexDataset(std::int64_t count, std::chrono::microseconds delay = {}) : count_(count), delay_(delay) {}

  std::int64_t size() const override { return count_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const int call = calls_++;
    {
      const std::lock_guard lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (delay_.count() > 0 && call % 3 == 0) std::this_thread::sleep_for(delay_);
    Batch batch{.x = empty({static_cast<std::int64_t>(indices.size()), 1, 2, 2}),
                .y = tensor(Indices(indices.begin(), indices.end())),
                .global_size = static_cast<std::int64_t>(indices.size())};
    float* x = batch.x.data<float>();
    for (const std::int64_t index : indices)
      for (int i = 0; i < 4; ++i) *x++ = static_cast<float>(4 * index + i);
    return batch;
  }

  int calls() const { return calls_; }
  std::set<std::thread::id> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  std::int64_t count_;
  std::chrono::microseconds delay_;
  mutable std::atomic<int> calls_ = 0;
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

std::vector<Indices> batches_of(const DataLoader& loader, std::uint64_t epoch, std::int64_t first_step = 0) {
  std::vector<Indices> batches;
  for (auto& batch : loader.epoch(epoch, first_step)) batches.push_back(batch.y.to_vector<std::int64_t>());
  return batches;
}

std::vector<float> values_of(const DataLoader& loader, std::uint64_t epoch) {
  std::vector<float> values;
  for (auto& batch : loader.epoch(epoch))
    for (const float value : batch.x.to_vector<float>()) values.push_back(value);
  return values;
}

std::shared_ptr<IndexDataset> numbers(std::int64_t count, std::chrono::microseconds delay = {}) {
  return std::make_shared<IndexDataset>(count, delay);
}

TEST(DataLoader, CutsTheOrderIntoBatches) {
  const DataLoader loader(numbers(10), {.batch_size = 4, .shuffle = false});
  EXPECT_EQ(loader.steps_per_epoch(), 3);
  EXPECT_EQ(batches_of(loader, 0), (std::vector<Indices>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
  const DataLoader dropping(numbers(10), {.batch_size = 4, .shuffle = false, .drop_last = true});
  EXPECT_EQ(dropping.steps_per_epoch(), 2);
  EXPECT_EQ(batches_of(dropping, 0), (std::vector<Indices>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(DataLoader, ShufflesBySeedAndEpoch) {
  const DataLoader loader(numbers(100), {.batch_size = 100, .seed = 5});
  EXPECT_EQ(batches_of(loader, 2)[0], epoch_permutation(100, 5, 2));
  EXPECT_NE(batches_of(loader, 2), batches_of(loader, 3));
  EXPECT_EQ(batches_of(loader, 2), batches_of(loader, 2)) << "an epoch can be had again";
}

struct Threads {
  int workers, prefetch;
};

class LoaderThreads : public ::testing::TestWithParam<Threads> {};

TEST_P(LoaderThreads, DeliverTheSameBatchesInOrder) {
  const auto [workers, prefetch] = GetParam();
  const auto options = [&](int num_workers) {
    return DataLoaderOptions{.batch_size = 3,
                             .seed = 1,
                             .num_workers = num_workers,
                             .prefetch = prefetch,
                             .transforms = {transforms::random_shift(1, -1.0f), transforms::random_horizontal_flip()}};
  };
  const auto set = numbers(100, 200us);
  const DataLoader loader(set, options(workers));
  const DataLoader inline_loader(numbers(100), options(0));
  EXPECT_EQ(batches_of(loader, 4), batches_of(inline_loader, 4));
  EXPECT_EQ(values_of(loader, 4), values_of(inline_loader, 4));
  EXPECT_EQ(set->threads().count(std::this_thread::get_id()), workers == 0 ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(All, LoaderThreads,
                         ::testing::Values(Threads{0, 1}, Threads{1, 1}, Threads{1, 4}, Threads{2, 2}, Threads{4, 1},
                                           Threads{7, 3}, Threads{64, 2}));

TEST(DataLoader, ResumesAtAnyStep) {
  const DataLoader loader(numbers(23), {.batch_size = 4, .seed = 9, .num_workers = 2});
  const std::vector<Indices> all = batches_of(loader, 1);
  ASSERT_EQ(all.size(), 6u);
  for (std::int64_t first = 0; first <= 6; ++first)
    EXPECT_EQ(batches_of(loader, 1, first), std::vector<Indices>(all.begin() + first, all.end()));
  EXPECT_EQ(error_of([&] { loader.epoch(1, 7); }), "[DataLoader] first_step 7 lies outside an epoch of 6 steps");
}

TEST(DataLoader, CountsSteps) {
  const DataLoader loader(numbers(6), {.batch_size = 2});
  auto epoch = loader.epoch(0, 1);
  EXPECT_EQ(epoch.steps(), 3);
  std::int64_t expected = 1;
  for ([[maybe_unused]] auto& batch : epoch) EXPECT_EQ(epoch.step(), expected++);
  EXPECT_EQ(expected, 3);
}

TEST(DataLoader, RanksShareEachGlobalBatch) {
  const auto set = numbers(50);
  const std::vector<Indices> global = batches_of(DataLoader(set, {.batch_size = 8, .seed = 2}), 3);
  for (const int world : {1, 2, 3, 4, 8}) {
    std::vector<Indices> together(global.size());
    for (int rank = 0; rank < world; ++rank) {
      const DataLoader loader(set, {.batch_size = 8, .seed = 2, .rank = rank, .world_size = world});
      EXPECT_EQ(loader.steps_per_epoch(), static_cast<std::int64_t>(global.size()));
      std::size_t step = 0;
      for (auto& batch : loader.epoch(3)) {
        EXPECT_EQ(batch.global_size, static_cast<std::int64_t>(global[step].size()));
        const Indices mine = batch.y.to_vector<std::int64_t>();
        together[step].insert(together[step].end(), mine.begin(), mine.end());
        ++step;
      }
      EXPECT_EQ(step, global.size()) << "every rank takes part in every step, with an empty part if need be";
    }
    EXPECT_EQ(together, global) << world << " ranks";
  }
}

TEST(DataLoader, TransformsDependOnTheSampleNotOnItsBatch) {
  const auto values_by_sample = [](DataLoaderOptions options) {
    options.transforms = {transforms::random_shift(1), transforms::random_horizontal_flip()};
    std::map<std::int64_t, std::vector<float>> values;
    const DataLoader loader(std::make_shared<IndexDataset>(40), options);
    for (auto& batch : loader.epoch(6)) {
      const Indices samples = batch.y.to_vector<std::int64_t>();
      const float* x = batch.x.data<float>();
      for (const std::int64_t sample : samples) values[sample].assign(x, x + 4), x += 4;
    }
    return values;
  };
  const auto expected = values_by_sample({.batch_size = 40, .shuffle = false, .seed = 3});
  EXPECT_EQ(values_by_sample({.batch_size = 7, .seed = 3, .num_workers = 3}), expected);
  EXPECT_NE(values_by_sample({.batch_size = 40, .shuffle = false, .seed = 4}), expected);
}

// What a data set draws in get(), as augmentation does.
TEST(DataLoader, SamplesDrawByEpochAndIndex) {
  struct Noise : MapDataset {
    std::int64_t size() const override { return 10; }
    Batch get(std::int64_t) const override { return {.x = rand({2})}; }
  };
  const auto noise = [](DataLoaderOptions options, std::int64_t epoch) {
    options.shuffle = false;
    return values_of(DataLoader(std::make_shared<Noise>(), options), static_cast<std::uint64_t>(epoch));
  };
  const std::vector<float> first = noise({.batch_size = 4}, 0);
  EXPECT_EQ(std::set<float>(first.begin(), first.end()).size(), 20u);
  EXPECT_NE(noise({.batch_size = 4}, 1), first);
  EXPECT_NE(noise({.batch_size = 4, .seed = 1}, 0), first);
  for (const int workers : {0, 1, 3})
    for (const std::int64_t batch : {1, 4, 10})
      EXPECT_EQ(noise({.batch_size = batch, .num_workers = workers}, 0), first) << workers << " " << batch;
  // What is drawn for a batch as a whole.
  struct Whole : Dataset {
    std::int64_t size() const override { return 10; }
    Batch get_batch(std::span<const std::int64_t> at) const override {
      return {.x = rand({static_cast<std::int64_t>(at.size())})};
    }
  };
  const Collate mix = [](const std::vector<Batch>& samples) {
    return Batch{.x = rand({static_cast<std::int64_t>(samples.size())})};
  };
  for (const bool collates : {false, true}) {
    const auto all = [&](int workers, int rank, std::uint64_t epoch) {
      std::shared_ptr<Dataset> set = std::make_shared<Whole>();
      if (collates) set = std::make_shared<Noise>();
      const DataLoaderOptions options{.batch_size = 5,
                                      .collate_fn = collates ? mix : nullptr,
                                      .num_workers = workers,
                                      .rank = rank,
                                      .world_size = 2};
      return values_of(DataLoader(set, options), epoch);
    };
    const std::vector<float> once = all(1, 0, 0);
    EXPECT_EQ(std::set<float>(once.begin(), once.end()).size(), once.size());
    EXPECT_EQ(all(3, 0, 0), once);
    EXPECT_EQ(all(0, 0, 0), once);
    EXPECT_NE(all(1, 0, 1), once);
    EXPECT_NE(all(1, 1, 0), once);
  }
  // What the loop itself draws does not depend on the loader.
  manual_seed(3);
  const std::vector<float> own = rand({4}).to_vector<float>();
  manual_seed(3);
  noise({.num_workers = 0}, 0);
  EXPECT_EQ(rand({4}).to_vector<float>(), own);
}

TEST(DataLoader, TakesASampler) {
  const auto sampler =
      std::make_shared<DistributedSampler>(6, DistributedSamplerOptions{.rank = 1, .world_size = 2, .shuffle = false});
  const DataLoader loader(numbers(6), {.batch_size = 2, .sampler = sampler});
  EXPECT_EQ(batches_of(loader, 0), (std::vector<Indices>{{1, 3}, {5}}));
  std::vector<std::int64_t> global;
  for (const Batch& batch : loader.epoch(0)) global.push_back(batch.global_size);
  EXPECT_EQ(global, (std::vector<std::int64_t>{4, 2}));
  const std::string shards = error_of([&] { DataLoader(numbers(6), {.logical_shards = 4, .sampler = sampler}); });
  EXPECT_NE(shards.find("are no logical shards"), std::string::npos) << shards;
  const std::string error = error_of([&] { DataLoader(numbers(6), {.world_size = 2, .sampler = sampler}); });
  EXPECT_NE(error.find("already gives each rank its share"), std::string::npos) << error;
}

TEST(DataLoader, AnEmptyDatasetHasNoSteps) {
  const DataLoader loader(numbers(0), {.batch_size = 4});
  EXPECT_EQ(loader.steps_per_epoch(), 0);
  EXPECT_TRUE(batches_of(loader, 0).empty());
}

TEST(DataLoader, PrefetchIsBounded) {
  const auto set = numbers(1000);
  const DataLoader loader(set, {.batch_size = 1, .num_workers = 2, .prefetch = 3});
  auto epoch = loader.epoch(0);
  // Nothing is consumed yet: workers fill 2 * 3 places and wait.
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (set->calls() < 6 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(set->calls(), 6);
  epoch.begin();
  while (set->calls() < 7 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(set->calls(), 7);
}

TEST(DataLoader, LeavingTheLoopEndsTheWorkers) {
  const auto set = numbers(100000, 100us);
  for (int stop_after = 0; stop_after < 4; ++stop_after) {
    const DataLoader loader(set, {.batch_size = 2, .num_workers = 3});
    int steps = 0;
    for ([[maybe_unused]] auto& batch : loader.epoch(0))
      if (steps++ == stop_after) break;
  }
  const int calls = set->calls();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(set->calls(), calls) << "a worker outlived its epoch";
  EXPECT_LT(calls, 200);
}

TEST(DataLoader, AForkedChildBeginsAnEpochOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's runtime cannot go on in the child of a process with threads";
#endif
  const DataLoader loader(std::make_shared<IndexDataset>(40), {.batch_size = 4, .num_workers = 2});
  std::unique_ptr<Epoch> epoch(new Epoch(loader.epoch(0)));
  epoch->begin();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends the child, and fails the test
    const std::string error = error_of([&] { ++epoch->begin(); });
    epoch.reset();
    int batches = 0;
    for (const Batch& batch : loader.epoch(0)) batches += batch.x.defined();
    _exit(error.find("call epoch() again here") != std::string::npos && batches == 10 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST(DataLoader, AnEpochMayOutliveItsLoader) {
  auto make = [] { return DataLoader(numbers(10), {.batch_size = 5}).epoch(0); };
  int samples = 0;
  for (auto& batch : make()) samples += static_cast<int>(batch.size());
  EXPECT_EQ(samples, 10);
}

class FailingDataset final : public IndexDataset {
 public:
  explicit FailingDataset(std::int64_t bad) : IndexDataset(40), bad_(bad) {}
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    for (const std::int64_t index : indices)
      if (index == bad_) throw Error("sample " + std::to_string(index) + " is bad");
    return IndexDataset::get_batch(indices);
  }

 private:
  std::int64_t bad_;
};

class LoaderErrors : public ::testing::TestWithParam<int> {};

TEST_P(LoaderErrors, ReachTheConsumerAtTheirStep) {
  const DataLoader loader(std::make_shared<FailingDataset>(21),
                          {.batch_size = 5, .shuffle = false, .num_workers = GetParam()});
  std::vector<std::int64_t> firsts;
  auto epoch = loader.epoch(0);
  EXPECT_EQ(error_of([&] {
              for (auto& batch : epoch) firsts.push_back(batch.y.to_vector<std::int64_t>()[0]);
            }),
            "sample 21 is bad");
  EXPECT_EQ(firsts, (Indices{0, 5, 10, 15}));
  EXPECT_TRUE(epoch.begin() == epoch.end()) << "the epoch is over";
  for (auto& batch : loader.epoch(0, 5)) firsts.push_back(batch.y.to_vector<std::int64_t>()[0]);
  EXPECT_EQ(firsts, (Indices{0, 5, 10, 15, 25, 30, 35})) << "the loader lives on";
}

INSTANTIATE_TEST_SUITE_P(All, LoaderErrors, ::testing::Values(0, 1, 3));

TEST(DataLoader, ErrorsOfTransformsReachTheConsumer) {
  const DataLoader loader(numbers(10), {.batch_size = 5, .transforms = {transforms::random_crop(3, 3)}});
  const std::string error = error_of([&] { batches_of(loader, 0); });
  EXPECT_NE(error.find("a window of 3 x 3 does not fit images of 2 x 2"), std::string::npos) << error;
}

class SlowDataset final : public IndexDataset {
 public:
  SlowDataset() : IndexDataset(4) {}
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    std::this_thread::sleep_for(300ms);
    return IndexDataset::get_batch(indices);
  }
};

TEST(DataLoader, TheLongestTimeoutIsAWait) {
  const DataLoader loader(std::make_shared<IndexDataset>(8, 20ms),
                          {.batch_size = 4, .num_workers = 1, .timeout = std::chrono::milliseconds::max()});
  int batches = 0;
  for (const Batch& batch : loader.epoch(0)) batches += batch.x.defined();
  EXPECT_EQ(batches, 2);
}

TEST(DataLoader, AWaitHasADeadline) {
  const DataLoader loader(std::make_shared<SlowDataset>(), {.batch_size = 2, .timeout = 20ms});
  try {
    batches_of(loader, 7);
    FAIL() << "no TimeoutError";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("step 0 of epoch 7 was not ready within 20 ms"), std::string::npos)
        << error.what();
  }
}

struct BadOptions {
  DataLoaderOptions options;
  const char* message;
};

class LoaderOptions : public ::testing::TestWithParam<BadOptions> {};

TEST_P(LoaderOptions, OutOfRangeAreRefused) {
  const std::string error = error_of([] { DataLoader(numbers(4), GetParam().options); });
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(All, LoaderOptions,
                         ::testing::Values(BadOptions{{.batch_size = 0}, "batch_size must be at least 1, found 0"},
                                           BadOptions{{.num_workers = -1}, "num_workers must be 0 to 256, found -1"},
                                           BadOptions{{.prefetch = 0}, "prefetch must be 1 to 1024"},
                                           BadOptions{{.rank = 2, .world_size = 2}, "rank 2 of world size 2"},
                                           BadOptions{{.timeout = 0ms}, "timeout must be above 0"},
                                           BadOptions{{.transforms = {nullptr}}, "a transform is empty"}));

TEST(DataLoader, RefusesANullDataset) {
  EXPECT_EQ(error_of([] { DataLoader(nullptr); }), "[DataLoader] the dataset is null; expected a dataset");
}

}  // namespace
}  // namespace lockstep::testing
