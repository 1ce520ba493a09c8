#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/data/data_loader.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace lockstep::data;  // NOLINT
using namespace std::chrono_literals;

/// Hangs until `gate` is open, but no longer than 5 s.
class HangingDataset final : public Dataset {
 public:
  explicit HangingDataset(const std::atomic<bool>& gate) : gate_(gate) {}
  std::int64_t size() const override { return 4; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (!gate_ && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    return {.x = zeros({static_cast<std::int64_t>(indices.size()), 1})};
  }

 private:
  const std::atomic<bool>& gate_;
};

TEST(DataLoader, ADatasetThatHangsDoesNotKeepTheTimeoutFromBeingSeen) {
  std::atomic<bool> gate{false};
  std::weak_ptr<const Dataset> left;
  const auto begin = std::chrono::steady_clock::now();
  for (const bool wait : {true, false}) {
    const auto dataset = std::make_shared<HangingDataset>(gate);
    left = dataset;
    const DataLoader loader(dataset, {.batch_size = 2, .num_workers = 2, .timeout = 50ms});
    if (wait)
      EXPECT_THROW(loader.epoch(0).begin(), TimeoutError);
    else
      loader.epoch(0);  // dropped while its workers are at work
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  gate = true;
  while (!left.expired() && std::chrono::steady_clock::now() - begin < 8s) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(left.expired());  // the workers have returned, and freed what was left
}

/// A batch of 100 takes two seconds.
class SlowSamples final : public MapDataset {
 public:
  std::int64_t size() const override { return 400; }
  Batch get(std::int64_t) const override {
    std::this_thread::sleep_for(20ms);
    return {.x = zeros({1})};
  }
};

/// A program's own set that reads ten samples a batch of another one.
class Around final : public Dataset {
 public:
  std::int64_t size() const override { return inner_.size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    try {
      return inner_.get_batch(indices.subspan(0, 10));
    } catch (...) {
      ++caught;
      throw;
    }
  }
  mutable std::atomic<int> caught = 0;

 private:
  SlowSamples inner_;
};

double seconds_to_leave(std::shared_ptr<const Dataset> dataset) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const DataLoader loader(std::move(dataset), {.batch_size = 100, .num_workers = 2});
    const auto epoch = loader.epoch(0);
    std::this_thread::sleep_for(50ms);  // the workers are at work
    throw Error("of the loop");
  } catch (const Error&) {
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(DataLoader, AnExceptionDoesNotWaitForBatchesThatNobodyWantsAnyMore) {
  EXPECT_LT(seconds_to_leave(std::make_shared<SlowSamples>()), 1.0);
  const auto around = std::make_shared<Around>();
  EXPECT_LT(seconds_to_leave(around), 1.0);
  EXPECT_EQ(around->caught, 0);
  std::atomic<bool> gate{false};
  const auto hanging = std::make_shared<HangingDataset>(gate);
  EXPECT_LT(seconds_to_leave(hanging), 4.0);
  gate = true;
  while (hanging.use_count() > 1) std::this_thread::sleep_for(1ms);  // the last worker has freed what was left
}

}  // namespace
}  // namespace lockstep::testing
