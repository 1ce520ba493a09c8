#include "lockstep/core/computation.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <ranges>
#include <utility>

#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile_modules.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

constexpr int kMaxLength = 6;

// All computations that have inputs, by age. Trivially destructible: results may outlive static objects.
constinit std::mutex list_mutex;
constinit Computation* newest = nullptr;
constinit std::atomic<int> on_devices{0};  // those of them that have a stream

LOCKSTEP_INITIAL_EXEC thread_local constinit bool computing = false;  // this thread holds locks

// Around fork(), so that the child, which has none of the other threads, finds the lock free and the list whole.
void watch_forks() {
  static const int registered =
      pthread_atfork([] { list_mutex.lock(); }, [] { list_mutex.unlock(); }, [] { list_mutex.unlock(); });
  LOCKSTEP_ASSERT(registered == 0, "pthread_atfork: {}", registered);
}

std::atomic<bool>& fusion_flag() {
  static std::atomic<bool> flag = environment_flag("LOCKSTEP_FUSION", /*unset=*/true);
  return flag;
}

}  // namespace

Computation::Computation(std::initializer_list<Tensor> inputs) : thread_(&computing) {
  inputs_.reserve(inputs.size());
  for (const Tensor& input : inputs) inputs_.push_back(input.defined() ? input.detach() : input);
  if (profile::enabled()) [[unlikely]]
    profile::remember_module(this);
  if (inputs_.empty()) return;
  const Storage& first = *inputs_[0].storage();
  if (first.is_pending()) {
    length_ = first.computation()->length_ + 1;
    follows_laid_out_ = first.computation()->follows_laid_out();
  }
  for (const Tensor& input : inputs_)
    if (input.defined()) input.storage()->readers_.fetch_add(1, std::memory_order_relaxed);
  if (inputs_[0].device().is_cuda()) stream_ = cuda::Stream::current(inputs_[0].device().index);
  enlist();
}

Computation::~Computation() {
  if (!inputs_.empty()) delist();
}

void Computation::enlist() {
  watch_forks();
  const std::lock_guard lock(list_mutex);
  older_ = newest;
  age_ = newest ? newest->age_ + 1 : 1;
  if (newest) newest->newer_ = this;
  newest = this;
  if (stream_) ++on_devices;
}

void Computation::delist() {
  {
    const std::lock_guard lock(list_mutex);
    (newer_ ? newer_->older_ : newest) = older_;
    if (older_) older_->newer_ = newer_;
    if (stream_) --on_devices;
  }
  for (const Tensor& input : inputs_)
    if (input.defined()) input.storage()->readers_.fetch_sub(1, std::memory_order_relaxed);
}

IntrusivePtr<TensorImpl> Computation::new_result(const Shape& sizes, TensorOptions options) {
  const std::size_t bytes = static_cast<std::size_t>(sizes.numel()) * element_size(options.dtype);
  auto impl = make_intrusive<TensorImpl>();
  impl->storage = StoragePtr(new Storage(bytes, options.device, IntrusivePtr<Computation>(this)));
  impl->sizes = sizes;
  impl->strides = contiguous_strides(sizes);
  impl->numel = sizes.numel();
  impl->dtype = options.dtype;
  return impl;
}

Tensor Computation::add_result(const Shape& sizes, TensorOptions options) {
  auto made = new_result(sizes, options);
  const std::lock_guard lock(mutex_);  // settle_all() of another thread may look
  results_.push_back(made->storage.get());
  return Tensor(std::move(made));
}

std::array<Tensor, 2> Computation::add_results(const Shape& first, TensorOptions of_first, const Shape& second,
                                               TensorOptions of_second) {
  auto a = new_result(first, of_first), b = new_result(second, of_second);
  const std::lock_guard lock(mutex_);
  results_.push_back(a->storage.get());
  results_.push_back(b->storage.get());
  return {Tensor(std::move(a)), Tensor(std::move(b))};
}

bool Computation::wants(std::size_t i) const {
  return i < results_.size() && results_[i] && results_[i]->is_pending();
}

bool Computation::pending() const {
  for (std::size_t i = 0; i < results_.size(); ++i)
    if (wants(i)) return true;
  return false;
}

std::uint32_t Computation::holders_of(std::size_t i) const {
  return results_[i]->use_count();
}

void Computation::deliver(std::size_t i, Tensor value) {
  if (wants(i)) results_[i]->adopt(*value.storage());
}

Computation::Tensors Computation::take_inputs_if_done() {
  if (inputs_.empty() || pending()) return {};
  delist();
  Tensors taken = std::move(inputs_);
  inputs_.clear();
  return taken;
}

void Computation::forget(const Storage& result) {
  Tensors taken;  // let go of without the lock
  const std::lock_guard lock(mutex_);
  for (Storage*& each : results_)
    if (each == &result) each = nullptr;
  taken = take_inputs_if_done();
}

Computation::Chain Computation::lock_chain() {
  Chain chain;
  const auto by_age = [](const Computation* a, const Computation* b) { return a->age_ < b->age_; };
  std::vector<Computation*> found{this};  // a heap: the newest is locked first
  while (!found.empty()) {
    std::ranges::pop_heap(found, by_age);
    Computation* const next = found.back();
    found.pop_back();
    if (!chain.members.empty() && chain.members.back() == next) continue;  // found twice
    std::unique_lock lock(next->mutex_);
    if (!next->pending()) continue;  // another thread was computing it
    chain.locks.push_back(std::move(lock));
    chain.members.push_back(next);
    if (next->is_laid_out()) continue;
    const std::size_t inputs = next->inputs_.size();
    const std::size_t waiting = next->is_elementwise() ? inputs : std::min<std::size_t>(inputs, 1);
    for (std::size_t i = 0; i < waiting; ++i) {
      if (!next->inputs_[i].storage()->is_pending()) continue;
      found.push_back(next->inputs_[i].storage()->computation());
      std::ranges::push_heap(found, by_age);
    }
  }
  std::reverse(chain.members.begin(), chain.members.end());
  return chain;
}

template <typename Work>
void Computation::run(const Work& work) {
  const LibraryAccess access;
  struct Computing {
    bool outer = std::exchange(computing, true);
    ~Computing() { computing = outer; }
  } const now;
  std::optional<cuda::StreamGuard> on_stream;
  if (stream_) on_stream.emplace(*stream_);
  work();
}

void Computation::settle() {
  std::vector<Tensors> taken;  // let go of without the locks
  const Chain chain = lock_chain();
  const std::span<Computation* const> members = chain.members;
  if (members.empty()) return;
  run([&] {
    {
      std::optional<profile::ModuleScope> module;
      if (profile::enabled()) [[unlikely]]
        module.emplace(profile::module_of(this));
      if (compute_graph(members)) return;
    }
    for (std::size_t head = 0; head < members.size();) {
      const std::span<Computation* const> links = members.subspan(head + 1);
      std::optional<profile::ModuleScope> module;
      if (profile::enabled()) [[unlikely]]
        module.emplace(profile::module_of(members[head]));
      std::size_t joined = members[head]->is_laid_out() ? 0 : links.size();
      while (joined > 0 && !members[head]->compute_through(links.first(joined))) --joined;
      if (members[head]->is_laid_out())
        members[head]->compute_laid_out();
      else if (joined == 0)
        members[head]->compute();
      head += joined + 1;
    }
  });
  for (Computation* each : members) taken.push_back(each->take_inputs_if_done());
}

bool Computation::with_graph(const std::function<void(std::span<Computation* const>)>& work) {
  std::vector<Tensors> taken;  // let go of without the locks
  const Chain chain = lock_chain();
  if (chain.members.empty()) return false;
  run([&] { work(chain.members); });
  for (Computation* each : chain.members) taken.push_back(each->take_inputs_if_done());
  return true;
}

void Computation::compute_laid_out() {
  deliver(0, copy_contiguous(in_order_of_channels(inputs_[0])));
}

void Computation::lay_out(Tensor values) {
  LOCKSTEP_ASSERT(values.dim() == 4 && values.is_contiguous(), "laid out: {}", to_string(values.sizes()));
  const std::lock_guard lock(list_mutex);  // others look for those that read their values
  values.storage()->readers_.fetch_add(1, std::memory_order_relaxed);
  for (const Tensor& input : inputs_)
    if (input.defined()) input.storage()->readers_.fetch_sub(1, std::memory_order_relaxed);
  inputs_.clear();
  inputs_.push_back(std::move(values));
  laid_out_.store(true, std::memory_order_relaxed);
}

Tensor Computation::lay_out_if_possible() {
  Tensors taken;  // let go of without the locks
  const Chain chain = lock_chain();
  if (chain.members.empty()) return {};
  if (is_laid_out()) return inputs_[0];
  if (results_.size() != 1) return {};
  Computation& head = *chain.members[0];
  const auto links = std::span<Computation* const>(chain.members).subspan(1);
  Tensor values;
  run([&] {
    std::optional<profile::ModuleScope> module;
    if (profile::enabled()) [[unlikely]]
      module.emplace(profile::module_of(&head));
    if (!head.is_laid_out()) {
      values = head.compute_channels_last(links);
      return;
    }
    values = head.inputs_[0];
    for (Computation* const link : links)
      if (values.defined()) values = link->continue_channels_last(values);
  });
  if (!values.defined()) return {};
  taken = inputs_;
  lay_out(values);
  return values;
}

Tensor Computation::channels_last() {
  Tensor values = lay_out_if_possible();
  if (!values.defined()) return values;
  order_after();
  if (stream_) {
    const cuda::Stream here = cuda::Stream::current(stream_->device());
    const LibraryAccess access;
    if (here != *stream_) cuda::record_stream(values, here);  // nobody else may hold them in a moment
  }
  return values;
}

void Computation::order_after() const {
  if (!stream_) return;
  const cuda::Stream here = cuda::Stream::current(stream_->device());
  if (here == *stream_) return;
  cuda::Event done(stream_->device());
  done.record(*stream_);
  here.wait(done);
}

SmallVector<Tensor, 3> Computation::pending_inputs() {
  const std::lock_guard lock(mutex_);
  return inputs_;
}

bool Computation::reads(const Storage& values) const {
  return std::ranges::any_of(inputs_,
                             [&](const Tensor& input) { return input.defined() && input.storage().get() == &values; });
}

void Computation::settle_each(const std::vector<IntrusivePtr<Computation>>& found) {
  for (const auto& each : found) each->settle();
}

void Computation::settle_readers(const Storage& values) {
  std::vector<IntrusivePtr<Computation>> found;  // oldest first
  {
    const std::lock_guard lock(list_mutex);
    std::vector<Computation*> all;
    for (Computation* each = newest; each; each = each->older_) all.push_back(each);
    for (auto next = all.rbegin(); next != all.rend(); ++next) {
      Computation* const each = *next;
      const bool follows = std::ranges::any_of(found, [&](const auto& other) {
        return std::ranges::any_of(each->inputs_, [&](const Tensor& input) {
          return input.defined() && input.storage()->computation() == other.get();
        });
      });
      if ((follows || each->reads(values)) && each->retain_if_held())
        found.push_back(IntrusivePtr<Computation>::adopt(each));
    }
  }
  std::reverse(found.begin(), found.end());
  settle_each(found);
}

template <typename Which>
std::vector<IntrusivePtr<Computation>> Computation::find_those(const Which& which) {
  std::vector<IntrusivePtr<Computation>> found;
  {
    const std::lock_guard lock(list_mutex);
    for (Computation* each = newest; each; each = each->older_)
      if (which(*each) && each->retain_if_held()) found.push_back(IntrusivePtr<Computation>::adopt(each));
  }
  return found;
}

bool Computation::is_computing() {
  return computing;
}

void Computation::settle_all() {
  settle_each(find_those([](const Computation&) { return true; }));
}

// Kernels, and the memory that they take, may wait for a stream themselves: nothing is settled while one computes.
void Computation::settle_device(int device) {
  if (on_devices.load(std::memory_order_relaxed) == 0 || computing) return;
  settle_each(find_those([&](const Computation& each) { return each.stream_ && each.stream_->device() == device; }));
}

void Computation::settle_own() {
  if (on_devices.load(std::memory_order_relaxed) == 0 || computing) return;
  for (const auto& each : find_those(
           [](const Computation& each) { return each.stream_ && each.thread_ == &computing && !each.is_laid_out(); }))
    if (!each->follows_laid_out() || !each->lay_out_if_possible().defined()) each->settle();
}

void Computation::settle_captured() {
  if (on_devices.load(std::memory_order_relaxed) == 0 || computing) return;
  for (const auto& each : find_those([](const Computation& each) {
         return each.stream_ && each.thread_ == &computing && each.stream_->is_capturing();
       })) {
    each->settle();
    each->order_after();
  }
}

bool fusion() {
  return fusion_flag().load(std::memory_order_relaxed);
}

void set_fusion(bool value) {
  Computation::settle_all();
  fusion_flag().store(value, std::memory_order_relaxed);
}

bool may_wait(std::int64_t work, std::initializer_list<Tensor*> operands) {
  constexpr std::int64_t kWorkOfCopy = 256;  // multiply-adds beside which the copy of an element does not count
  for (const Tensor* operand : operands)
    if (operand->defined()) operand->storage()->settle();
  if (!fusion() || reference_kernels()) return false;
  for (const Tensor* operand : operands)
    if (operand->defined() && operand->storage()->is_lent() && operand->numel() > work / kWorkOfCopy) return false;
  for (Tensor* operand : operands)
    if (operand->defined() && operand->storage()->is_lent()) *operand = copy_contiguous(*operand);
  return true;
}

Computation* joinable(const Tensor& tensor) {
  auto* const computation = pending_result_of<Computation>(tensor);
  if (!computation || computation->length() >= kMaxLength) return nullptr;
  const bool is_apart = computation->is_laid_out() || computation->is_elsewhere() || computation->is_elementwise();
  return is_apart ? nullptr : computation;
}

}  // namespace lockstep
