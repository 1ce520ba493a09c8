#include <algorithm>
#include <numeric>

#include "lockstep/autograd/ops/multinomial/multinomial_kernels.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {

// As draw_class(), whose running sums are computed once for each row: the first of them that exceeds the target is one
// of a class that adds to it.
void multinomial_cpu(const Tensor& probabilities, const Tensor& drawn, const philox::KeySource& key) {
  const std::int64_t rows = probabilities.size(0), classes = probabilities.size(1), count = drawn.size(1);
  const Tensor sums = empty({rows, classes}, {.dtype = kFloat64});
  const auto row_of = [&](const Tensor& values, std::int64_t row) { return values.data<double>() + row * classes; };
  lockstep::parallel_for(rows, std::max<std::int64_t>(1, cpu::kElementBlock / classes),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t row = begin; row < end; ++row) {
                             const double* const from = row_of(probabilities, row);
                             std::partial_sum(from, from + classes, row_of(sums, row));
                           }
                         });
  lockstep::parallel_for(drawn.numel(), cpu::kElementBlock / 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const double *const first = row_of(sums, i / count), *const last = first + classes - 1;
      const double target = uniform_at(key.get(), static_cast<std::uint64_t>(i)) * *last;
      std::int64_t found = std::upper_bound(first, last, target) - first;
      // Rounding may make the target the total: then it is the last class that there is.
      while (!(row_of(probabilities, i / count)[found] > 0)) --found;
      drawn.data<std::int64_t>()[i] = found;
    }
  });
}

}  // namespace lockstep::detail
