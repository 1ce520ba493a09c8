#include "lockstep/core/elementwise_computation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise_program.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile.h"

namespace lockstep {
namespace {

/// Its elements lie in rows with gaps, and the rows are so short that they are read where they are more quickly than
/// brought together first.
bool has_short_rows(const Tensor& x) {
  constexpr std::int64_t kLong = 128;
  if (std::ranges::count(x.strides(), 0) > 0) return false;  // it stands for a smaller one
  std::int64_t run = 1;
  for (int d = x.dim() - 1; d >= 0 && (x.sizes()[d] == 1 || x.strides()[d] == run); --d) run *= x.sizes()[d];
  return run < kLong;
}

/// The last of this thread that has several large operands and joins none; the program may let go of them.
thread_local IntrusivePtr<ElementwiseComputation> last_of_several;

}  // namespace

ElementwiseComputation* ElementwiseComputation::joined(const Tensor& x, std::int64_t numel, DType compute_type) {
  if (x.numel() != numel) return nullptr;
  auto* const computation = pending_result_of<Computation>(x);
  if (!computation || !computation->is_elementwise()) return nullptr;
  auto* const result = static_cast<ElementwiseComputation*>(computation);
  return result->compute_type_ == compute_type ? result : nullptr;
}

bool ElementwiseComputation::may_wait(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands) {
  const std::int64_t numel = sizes.numel();
  if (numel < kLeast || !is_floating_point(dtype) || !fusion() || reference_kernels() || is_computing()) return false;
  if (const auto last = std::exchange(last_of_several, {})) {
    const bool goes_on = std::ranges::any_of(
        operands, [&](const Tensor* each) { return each->defined() && each->storage()->computation() == last.get(); });
    if (!goes_on && last->is_wasteful()) last->settle();
  }
  int steps = 1;
  for (const Tensor* each : operands) {
    if (!each->defined()) continue;
    if (!each->device().is_cpu()) return false;
    if (const auto* const other = joined(*each, numel, dtype)) {
      steps += other->steps_;
      continue;
    }
    each->storage()->settle();
    if (each->storage()->is_lent()) return false;
    if (each->numel() == numel && has_short_rows(*each)) return false;
  }
  if (steps > kMostSteps)
    for (const Tensor* each : operands)
      if (each->defined()) each->storage()->settle();
  return true;
}

ElementwiseComputation::ElementwiseComputation(std::initializer_list<Tensor> operands, const Shape& sizes, DType dtype,
                                               DType compute_type, int cost)
    : Computation(operands),
      sizes_(sizes),
      dtype_(dtype),
      compute_type_(compute_type),
      device_(operands.begin()->device()),
      cost_(cost) {
  for (const Tensor& each : operands)
    if (const auto* const other = joined(each, sizes.numel(), compute_type)) steps_ += other->steps_;
}

Tensor ElementwiseComputation::result() {
  const Tensor result = add_result(sizes_, {.dtype = dtype_, .device = device_});
  if (steps_ == 1 && inputs().size() > 1) last_of_several = IntrusivePtr<ElementwiseComputation>(this);
  return result;
}

bool ElementwiseComputation::is_wasteful() {
  std::vector<const Storage*> own;
  std::size_t bytes = 0;
  for (const Tensor& each : pending_inputs()) {
    const Storage* const storage = each.storage().get();
    if (storage->use_count() > 1 || std::ranges::count(own, storage) > 0) continue;
    own.push_back(storage);
    bytes += storage->bytes();
  }
  return bytes > static_cast<std::size_t>(sizes_.numel()) * element_size(dtype_);
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
