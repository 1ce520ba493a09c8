#pragma once

// Where the terms of a reduction come from. For .cpp files only.

#include <algorithm>
#include <memory>
#include <type_traits>

#include "lockstep/autograd/ops/reduce/reduce_plan.h"
#include "lockstep/autograd/ops/reduce/reduce_rows.h"
#include "lockstep/core/elementwise_computation.h"

namespace lockstep::reduce_fold {

/// What is reduced: elements in memory, or read as they are made, all of them once.
struct Terms {
  const void* data;
  DType dtype;
  const ElementReader* reader = nullptr;

  template <typename C>
  const C* read(std::int64_t begin, std::int64_t count, C* buffer) const {
    if constexpr (std::is_floating_point_v<C>) return reader->values<C>(begin, count, buffer);
    return nullptr;
  }
};

/// Outputs [begin, end), whose terms are made as they are read, one output after the other.
template <typename R, typename C>
void reduce_made_rows(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out,
                      std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTerms = 8192;  // at a time, beside what makes them in the second-level cache
  const C* const centres = about ? static_cast<const C*>(about->raw_data()) : nullptr;
  const std::int64_t rows = std::max<std::int64_t>(1, kTerms / plan.count);
  const auto buffer =
      std::make_unique_for_overwrite<C[]>(static_cast<std::size_t>(std::min(rows, end - begin) * plan.count));
  for (std::int64_t first = begin; first < end; first += rows) {
    const std::int64_t some = std::min(rows, end - first);
    const C* const values = x.read<C>(first * plan.count, some * plan.count, buffer.get());
    reduce_rows<R, C>(values, plan.count, some, plan.count, centres ? centres + first : nullptr, divisor,
                      static_cast<C*>(out.raw_data()) + first);
  }
}

}  // namespace lockstep::reduce_fold
