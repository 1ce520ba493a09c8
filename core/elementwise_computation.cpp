#include "lockstep/core/elementwise_computation.h"

#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise_program.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile.h"

namespace lockstep {

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
