#include "lockstep/core/elementwise_computation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "lockstep/core/elementwise.h"
#include "lockstep/core/elementwise_program.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile.h"

namespace lockstep {
namespace {

/// Memory that an expression may keep until it is computed, in tensors of its result's size.
constexpr std::size_t kMostMemory = 4;

/// A mebibyte of float32: smaller tensors come from caches.
std::atomic<std::int64_t> least_elements{262144};

/// Its elements, or those of the smaller tensor that is broadcast, lie in rows so short that they are read where they
/// are more quickly than brought together first.
bool has_short_rows(const Tensor& x, const Shape& sizes) {
  constexpr std::int64_t kLong = 256;
  const auto loop = cpu::plan_loop<1>(sizes, {&x});
  return loop.sizes.dim() > 1 && loop.sizes.back() < kLong;
}

/// The results that this thread has left pending last: the program may let go of their operands.
class Recent {
 public:
  void add(IntrusivePtr<ElementwiseComputation> computation) {
    entries_[next_++ % entries_.size()] = std::move(computation);
  }
  /// Calls look(computation), and forgets those for which it returns false.
  template <typename Look>
  void look_at(const Look& look) {
    for (auto& each : entries_)
      if (each && !look(*each)) each = {};
  }

 private:
  std::array<IntrusivePtr<ElementwiseComputation>, 8> entries_;
  std::size_t next_ = 0;
};
thread_local Recent recent;

}  // namespace

/// What operations read: computations that are pending, each once, and memory.
struct ElementwiseComputation::Origins {
  std::vector<ElementwiseComputation*> steps;
  std::vector<const Storage*> memory;
  std::vector<Tensor> operands;  ///< keep both

  /// `own`: only what nobody else holds, which is what goes when the result is there.
  void add(const Tensor& x, std::int64_t numel, DType compute_type, bool own) {
    const Storage* const storage = x.storage().get();
    if (own && storage->use_count() > 1) return;
    operands.push_back(x);
    ElementwiseComputation* const computation = joined(x, numel, compute_type);
    if (!computation) {
      if (!std::ranges::count(memory, storage)) memory.push_back(storage);
    } else if (!std::ranges::count(steps, computation) && steps.size() <= kMostSteps) {
      steps.push_back(computation);
      for (const Tensor& each : computation->pending_inputs()) add(each, numel, compute_type, own);
    }
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Storage* each : memory) sum += each->bytes();
    return sum;
  }
};

ElementwiseComputation* ElementwiseComputation::joined(const Tensor& x, std::int64_t numel, DType compute_type) {
  if (x.numel() != numel) return nullptr;
  auto* const computation = pending_result_of<Computation>(x);
  if (!computation || !computation->is_elementwise()) return nullptr;
  auto* const result = static_cast<ElementwiseComputation*>(computation);
  return result->compute_type_ == compute_type ? result : nullptr;
}

std::int64_t ElementwiseComputation::least() {
  return least_elements.load(std::memory_order_relaxed);
}
void ElementwiseComputation::set_least(std::int64_t elements) {
  least_elements.store(elements, std::memory_order_relaxed);
}

bool ElementwiseComputation::may_wait(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands) {
  const std::int64_t numel = sizes.numel();
  if (numel < least() || (dtype != kFloat32 && dtype != kFloat64) || !fusion() || reference_kernels() || is_computing())
    return false;
  const auto for_each = [&](const auto& body) {
    for (const Tensor* each : operands)
      if (each->defined()) body(*each);
  };
  recent.look_at([&](ElementwiseComputation& last) {
    bool goes_on = false;
    for_each([&](const Tensor& x) { goes_on = goes_on || x.storage()->computation() == &last; });
    if (!goes_on && last.is_wasteful()) last.settle();
    return !goes_on && last.is_waiting();
  });
  const std::size_t most = kMostMemory * static_cast<std::size_t>(numel) * element_size(dtype);
  Origins origins;
  bool may = true;
  for_each([&](const Tensor& x) {
    may = may && x.device().is_cpu();
    if (!may) return;
    if (!joined(x, numel, dtype)) {
      x.storage()->settle();
      may = !x.storage()->is_lent() && !has_short_rows(x, sizes);
    }
    origins.add(x, numel, dtype, false);
  });
  if (!may) return false;
  if (origins.steps.size() < kMostSteps && origins.bytes() <= most) return true;
  for_each([](const Tensor& x) { x.storage()->settle(); });
  Origins direct;
  for_each([&](const Tensor& x) { direct.add(x, numel, dtype, false); });
  return direct.bytes() <= most;
}

ElementwiseComputation::ElementwiseComputation(std::initializer_list<Tensor> operands, const Shape& sizes, DType dtype,
                                               DType compute_type, int cost)
    : Computation(operands),
      sizes_(sizes),
      dtype_(dtype),
      compute_type_(compute_type),
      device_(operands.begin()->device()),
      cost_(cost) {}

Tensor ElementwiseComputation::result() {
  recent.add(IntrusivePtr<ElementwiseComputation>(this));
  return add_result(sizes_, {.dtype = dtype_, .device = device_});
}

bool ElementwiseComputation::is_waiting() {
  return !pending_inputs().empty();
}

bool ElementwiseComputation::is_wasteful() {
  Origins origins;
  for (const Tensor& each : pending_inputs()) origins.add(each, sizes_.numel(), compute_type_, true);
  return origins.bytes() >= static_cast<std::size_t>(sizes_.numel()) * element_size(dtype_);
}

bool ElementwiseComputation::compute_graph(std::span<Computation* const> members) {
  if (members.size() == 1) return false;
  profile::Scope scope("kernel", "elementwise");
  if (scope.active()) [[unlikely]]
    scope.add(sizes_);
  ElementProgram program(members, true);
  program.run_all();
  program.deliver();
  return true;
}

bool is_pending_elementwise(const Tensor& tensor) {
  const auto* const computation = pending_result_of<Computation>(tensor);
  return computation && computation->is_elementwise();
}

bool ElementReader::read(const Tensor& x, const std::function<void(const ElementReader&)>& read) {
  auto* const computation = ElementwiseComputation::joined(x, x.numel(), x.dtype());
  if (!computation) return false;
  return computation->with_graph([&](std::span<Computation* const> members) {
    ElementProgram program(members, false);
    read(ElementReader(program));
    program.deliver();
  });
}

template <typename T>
const T* ElementReader::values(std::int64_t begin, std::int64_t count, T* buffer) const {
  return program_.run<T>(begin, count, buffer);
}
template const float* ElementReader::values(std::int64_t, std::int64_t, float*) const;
template const double* ElementReader::values(std::int64_t, std::int64_t, double*) const;

}  // namespace lockstep
