#pragma once

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// drawn[row, i] (int64 [rows, count]): the first class whose running sum exceeds u * (sum of the row), with u from
/// words 2e and 2e + 1 of the key for element e = row * count + i. probabilities: float64 [rows, classes]; both are
/// contiguous, with at least one element.
using MultinomialKernel = void(const Tensor& probabilities, const Tensor& drawn, const philox::KeySource& key);
MultinomialKernel multinomial_cpu, multinomial_cuda;

/// Uniform on [0, 1) with 53 bits.
LOCKSTEP_HOST_DEVICE inline double uniform_at(philox::Key key, std::uint64_t element) {
  const std::uint64_t high = philox::word_at(key, 2 * element), low = philox::word_at(key, 2 * element + 1);
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

/// Class number of one draw; of those without a probability, none is taken.
LOCKSTEP_HOST_DEVICE inline std::int64_t draw_class(const double* row, std::int64_t classes, double u) {
  double total = 0;
  for (std::int64_t c = 0; c < classes; ++c) total += row[c];
  const double target = u * total;
  double sum = 0;
  std::int64_t last = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    if (!(row[c] > 0)) continue;
    last = c;
    sum += row[c];
    if (sum > target) break;
  }
  return last;
}

}  // namespace lockstep::detail
