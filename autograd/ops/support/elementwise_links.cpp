#include "lockstep/autograd/ops/support/elementwise_links.h"

#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {

bool ElementwiseLinks::add(std::span<Computation* const> links) {
  for (const Computation* const link : links) {
    if (const auto* unary = dynamic_cast<const UnaryComputation*>(link); unary && unary->op() == UnaryOp::relu) {
      links_.push_back({nullptr, false});
    } else if (const auto* sum = dynamic_cast<const SumComputation*>(link)) {
      links_.push_back({sum->other().data<float>(), sum->other_first()});
    } else {
      return false;
    }
  }
  return true;
}

void ElementwiseLinks::apply(float* values, std::int64_t first, std::int64_t count) const {
  for (const Link& link : links_) {
    if (!link.other) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
      continue;
    }
    const float* const other = link.other + first;
    if (link.other_first) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < count; ++i) values[i] = other[i] + values[i];
    } else {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] + other[i];
    }
  }
}

}  // namespace lockstep
