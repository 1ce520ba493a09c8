#include <algorithm>

#include "lockstep/autograd/ops/multinomial/multinomial_kernels.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void multinomial_cpu(const Tensor& probabilities, const Tensor& drawn, const philox::KeySource& key) {
  const std::int64_t classes = probabilities.size(1), count = drawn.size(1);
  lockstep::parallel_for(drawn.numel(), std::max<std::int64_t>(1, cpu::kElementBlock / classes),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i)
                             drawn.data<std::int64_t>()[i] =
                                 draw_class(probabilities.data<double>() + i / count * classes, classes,
                                            uniform_at(key.get(), static_cast<std::uint64_t>(i)));
                         });
}

}  // namespace lockstep::detail
