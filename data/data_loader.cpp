#include "lockstep/data/data_loader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/resident_dataset.h"
#include "lockstep/data/wanted.h"

namespace lockstep::data {

// Note [Loader threads]
// Workers take step numbers in order and put each batch into slot step % slots; the consumer takes them out in order.
// A worker may take step s only while s < taken + slots: that bounds the memory, and makes a slot free when it is used.
//
// An epoch ends with its workers, which give up the batches under way, a MapDataset's before the next sample. But it
// does not end with one that hangs in the data set (a disk that does not answer): its end waits for them no longer than
// the loader's timeout; where an exception ends it, which would else be seen too late, kUnwindingWait at most; and not
// at all after a TimeoutError. What is left belongs to the workers then, and the last one that returns frees it.
constexpr std::chrono::milliseconds kUnwindingWait{2'000};

struct Epoch::Impl {
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  Impl(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const ResidentDataset> resident,
       const DataLoaderOptions& options, int shares, std::vector<std::int64_t> order, std::uint64_t epoch,
       std::int64_t steps, std::int64_t first_step)
      : dataset(std::move(dataset)),
        resident(std::move(resident)),
        options(options),
        shares(shares),
        is_plain(this->dataset->is_of_rows() && options.transforms.empty() && !options.collate_fn),
        order(std::move(order)),
        epoch(epoch),
        steps(steps),
        next_step(first_step),
        taken(first_step),
        slots(static_cast<std::size_t>(options.num_workers) * static_cast<std::size_t>(options.prefetch)) {}

  /// Ends the workers. False, and this belongs to them, if they do not come back in time.
  bool end_workers() {
    std::unique_lock lock(mutex);
    stopping = true;
    slot_free.notify_all();
    const auto longest =
        std::uncaught_exceptions() > exceptions ? std::min(options.timeout, kUnwindingWait) : options.timeout;
    const auto deadline = timed_out ? std::chrono::steady_clock::now() : deadline_in(longest);
    abandoned = !worker_gone.wait_until(lock, deadline, [this] { return running == 0; });
    if (abandoned) {
      for (std::thread& worker : workers) worker.detach();
      return false;
    }
    lock.unlock();
    for (std::thread& worker : workers) worker.join();
    return true;
  }

  void start() {
    if (resident) {
      order_on_device = resident->upload(order);
      return;
    }
    const std::int64_t count = std::min<std::int64_t>(options.num_workers, steps - next_step);
    for (std::int64_t i = 0; i < count; ++i) {
      {
        const std::lock_guard lock(mutex);
        ++running;
      }
      try {
        workers.push_back(start_thread("a DataLoader's worker", [this] {
          if (work()) delete this;
        }));
      } catch (...) {
        const std::lock_guard lock(mutex);
        --running;
        throw;
      }
    }
  }

  Slot& slot_of(std::int64_t step) { return slots[static_cast<std::size_t>(step) % slots.size()]; }

  Range part_of_rank(std::int64_t samples) const {
    if (options.logical_shards == 0) return partition(samples, options.world_size, options.rank);
    const Range shards = partition(options.logical_shards, options.world_size, options.rank);
    return {partition(samples, options.logical_shards, shards.begin).begin,
            partition(samples, options.logical_shards, shards.end - 1).end};
  }

  Batch make_batch(std::int64_t step) const {
    const Range global = batch_range(static_cast<std::int64_t>(order.size()), options.batch_size, step);
    const Range part = part_of_rank(global.size());
    if (resident) {
      Batch batch = resident->get_batch(rows(order_on_device, global.begin + part.begin, part.size()));
      batch.global_size = global.size() * shares;
      return batch;
    }
    Batch batch = options.logical_shards > 0 && !is_plain ? of_shards(step, global)
                                                          : of_samples(step, options.rank, global.begin, part);
    batch.global_size = global.size() * shares;
    return batch;
  }

  /// The samples at `part` of the order from `begin` on, as one batch, of draws of their own.
  Batch of_samples(std::int64_t step, std::int64_t key, std::int64_t begin, Range part) const {
    const auto indices =
        std::span(order).subspan(static_cast<std::size_t>(begin + part.begin), static_cast<std::size_t>(part.size()));
    const SampleKeys keys(options.seed, epoch, step, key);
    Batch batch = options.collate_fn ? collate(*dataset, indices, options.collate_fn) : dataset->get_batch(indices);
    LOCKSTEP_CHECK(batch.size() == part.size(),
                   "[DataLoader] {} samples were asked for, and a batch of {} came back; "
                   "expected a row for each in all tensors",
                   part.size(), batch.size());
    LOCKSTEP_CHECK(options.transforms.empty() || batch.x.defined(),
                   "[DataLoader] transforms are applied to x, and the batch has none");
    AugmentContext context(options.seed, epoch, indices);
    for (const Transform& transform : options.transforms) batch.x = transform(batch.x, context);
    return batch;
  }

  /// This rank's logical shards, each made of its own samples alone, so that what is padded or drawn for one does not
  /// depend on how many a rank has.
  Batch of_shards(std::int64_t step, Range global) const {
    const Range mine = partition(options.logical_shards, options.world_size, options.rank);
    std::vector<Batch> shards;
    for (std::int64_t shard = mine.begin; shard < mine.end; ++shard)
      if (const Range part = partition(global.size(), options.logical_shards, shard); part.size() > 0)
        shards.push_back(of_samples(step, shard, global.begin, part));
    if (shards.empty()) return of_samples(step, mine.begin, global.begin, {0, 0});
    return shards.size() == 1 ? std::move(shards[0]) : joined_shards(shards);
  }

  /// Returns whether nobody else is left to free this.
  bool work() {
    std::unique_lock lock(mutex);
    deliver(lock);
    --running;
    if (abandoned) return running == 0;
    worker_gone.notify_one();
    return false;
  }

  void deliver(std::unique_lock<std::mutex>& lock) {
    while (true) {
      const auto may_take = [this] { return next_step < taken + static_cast<std::int64_t>(slots.size()); };
      slot_free.wait(lock, [&] { return stopping || next_step >= steps || may_take(); });
      if (stopping || next_step >= steps) return;
      const std::int64_t step = next_step++;
      lock.unlock();
      Slot result;
      try {
        const WantedUntil wanted(*dataset, stopping);
        result.batch = make_batch(step);
      } catch (const Unwanted&) {
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      slot_of(step) = std::move(result);
      batch_ready.notify_one();
    }
  }

  // The batch of step `taken`, which becomes taken + 1.
  Batch take() {
    if (workers.empty()) return make_batch(taken++);
    LOCKSTEP_CHECK(::getpid() == owner,
                   "[DataLoader] this process was forked after epoch {} had begun and has none of its worker threads; "
                   "call epoch() again here",
                   epoch);
    std::unique_lock lock(mutex);
    Slot& slot = slot_of(taken);
    const bool ready = batch_ready.wait_until(lock, deadline_in(options.timeout),
                                              [&] { return slot.batch.has_value() || slot.error != nullptr; });
    timed_out = !ready;
    if (!ready)
      throw TimeoutError(fmt::format(
          "[DataLoader] the batch of step {} of epoch {} was not ready within {} ms (num_workers = {}); check "
          "that the data's disk responds, or raise DataLoaderOptions::timeout",
          taken, epoch, options.timeout.count(), options.num_workers));
    Slot result = std::exchange(slot, {});
    ++taken;
    lock.unlock();
    slot_free.notify_one();
    if (result.error) std::rethrow_exception(result.error);
    return std::move(*result.batch);
  }

  const std::shared_ptr<const Dataset> dataset;
  const std::shared_ptr<const ResidentDataset> resident;  // then there are no workers
  Tensor order_on_device;
  const DataLoaderOptions options;
  const std::int64_t shares;  // of the samples, of which `order` is one
  const bool is_plain;        // logical shards need not be made one by one
  const std::vector<std::int64_t> order;
  const std::uint64_t epoch;
  const std::int64_t steps;
  const pid_t owner = ::getpid();
  const int exceptions = std::uncaught_exceptions();  // that were on their way when it began

  std::optional<Batch> delivered;
  bool failed = false;

  std::mutex mutex;  // guards what follows
  std::condition_variable slot_free;
  std::condition_variable batch_ready;
  std::condition_variable worker_gone;
  std::int64_t next_step;
  std::int64_t taken;
  std::vector<Slot> slots;
  std::atomic<bool> stopping = false;
  bool timed_out = false;  // a batch was not ready in time
  bool abandoned = false;  // the last worker frees this
  int running = 0;         // workers that have not returned
  std::vector<std::thread> workers;
};

namespace {

bool fits(const Dataset& dataset, std::size_t limit) {
  if (dataset.size() == 0) return false;
  const std::int64_t first = 0;
  const Batch one = dataset.get_batch({&first, 1});
  std::size_t bytes = 0;
  one.for_each([&](const char*, const Tensor& tensor) { bytes += tensor.nbytes(); });
  return bytes <= limit / static_cast<std::size_t>(dataset.size());
}

}  // namespace

void Epoch::Deleter::operator()(Impl* impl) const {
  // In a forked child nobody answers to join(), and a lock may be held for ever: the memory stays.
  if (!impl->workers.empty() && (::getpid() != impl->owner || !impl->end_workers())) return;
  delete impl;
}

Epoch::Epoch(std::unique_ptr<Impl, Deleter> impl) : impl_(std::move(impl)) {}
Epoch::~Epoch() = default;

void Epoch::advance() {
  current_ = nullptr;
  impl_->delivered.reset();  // its memory serves the batches to come
  if (impl_->failed || impl_->taken >= impl_->steps) return;
  impl_->failed = true;
  impl_->delivered = impl_->take();
  impl_->failed = false;
  current_ = &*impl_->delivered;
}

Epoch::Iterator Epoch::begin() {
  advance();
  return Iterator(this);
}

std::int64_t Epoch::steps() const {
  return impl_->steps;
}
std::int64_t Epoch::step() const {
  return impl_->taken - 1;
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  LOCKSTEP_CHECK(dataset_ != nullptr, "[DataLoader] the dataset is null; expected a dataset");
  LOCKSTEP_CHECK(options_.batch_size >= 1, "[DataLoader] batch_size must be at least 1, found {}", options_.batch_size);
  LOCKSTEP_CHECK(options_.num_workers >= 0 && options_.num_workers <= 256,
                 "[DataLoader] num_workers must be 0 to 256, found {}", options_.num_workers);
  LOCKSTEP_CHECK(options_.prefetch >= 1 && options_.prefetch <= 1024,
                 "[DataLoader] prefetch must be 1 to 1024 batches a worker, found {}", options_.prefetch);
  LOCKSTEP_CHECK(options_.world_size >= 1 && options_.rank >= 0 && options_.rank < options_.world_size,
                 "[DataLoader] rank {} of world size {} does not exist; expected 0 <= rank < world size", options_.rank,
                 options_.world_size);
  LOCKSTEP_CHECK(options_.timeout.count() > 0, "[DataLoader] timeout must be above 0, found {} ms",
                 options_.timeout.count());
  for (const Transform& transform : options_.transforms)
    LOCKSTEP_CHECK(transform != nullptr, "[DataLoader] a transform is empty; expected a callable");
  LOCKSTEP_CHECK(options_.logical_shards == 0 || options_.logical_shards >= options_.world_size,
                 "[DataLoader] {} logical shards cannot be shared by {} ranks; expected at least as many, or 0",
                 options_.logical_shards, options_.world_size);
  const bool divided = options_.sampler && options_.sampler->world_size() > 1;
  LOCKSTEP_CHECK(!divided || options_.world_size == 1,
                 "[DataLoader] a DistributedSampler already gives each rank its share; leave rank and world_size at "
                 "their defaults, found world_size {}",
                 options_.world_size);
  LOCKSTEP_CHECK(!divided || options_.logical_shards == 0,
                 "[DataLoader] a DistributedSampler gives other global batches on other numbers of ranks, so its parts "
                 "are no logical shards; leave out the sampler and give rank and world_size, or leave out "
                 "logical_shards, found {}",
                 options_.logical_shards);
  sampler_ = options_.sampler;
  if (!sampler_ && options_.shuffle) sampler_ = std::make_shared<RandomSampler>(dataset_->size(), options_.seed);
  if (!sampler_) sampler_ = std::make_shared<SequentialSampler>(dataset_->size());
  if (options_.device.is_cuda() && options_.transforms.empty() && !options_.collate_fn &&
      fits(*dataset_, options_.resident_bytes))
    resident_ = std::make_shared<ResidentDataset>(*dataset_, options_.device);
}

std::int64_t DataLoader::steps_per_epoch() const {
  return batch_count(sampler_->size(), options_.batch_size, options_.drop_last);
}

Epoch DataLoader::epoch(std::int64_t number, std::int64_t first_step) const {
  LOCKSTEP_CHECK(number >= 0, "[DataLoader] epoch {} does not exist; the first is 0", number);
  const auto epoch = static_cast<std::uint64_t>(number);
  const std::int64_t steps = steps_per_epoch();
  LOCKSTEP_CHECK(first_step >= 0 && first_step <= steps, "[DataLoader] first_step {} lies outside an epoch of {} steps",
                 first_step, steps);
  std::vector<std::int64_t> order = sampler_->indices(epoch);
  LOCKSTEP_CHECK(static_cast<std::int64_t>(order.size()) == sampler_->size(),
                 "[DataLoader] the sampler gave {} indices for epoch {}; expected its size, {}", order.size(), epoch,
                 sampler_->size());
  std::unique_ptr<Epoch::Impl, Epoch::Deleter> impl(new Epoch::Impl(
      dataset_, resident_, options_, sampler_->world_size(), std::move(order), epoch, steps, first_step));
  impl->start();
  return Epoch(std::move(impl));
}

}  // namespace lockstep::data
