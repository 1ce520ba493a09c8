#include <algorithm>

#include "lockstep/autograd/ops/embedding/embedding_bag_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void bag_sums_cpu(const Tensor& weight, const Tensor& index, const Tensor& bags, const Tensor& out) {
  const std::int64_t n = index.numel(), count = out.size(0), width = out.size(1);
  const std::int64_t *rows = index.data<std::int64_t>(), *bag = bags.data<std::int64_t>();
  const std::int64_t block = std::max<std::int64_t>(1, cpu::kElementBlock * count / std::max(count, n * width));
  dispatch_compute(out.dtype(), "embedding_bag", [&]<typename T>() {
    constexpr std::int64_t kAhead = 4, kLine = 64 / sizeof(T), kLinesAhead = 8;
    const T* from = weight.data<T>();
    lockstep::parallel_for(count, block, [&](std::int64_t begin, std::int64_t end) {
      T* const to = out.data<T>();
      std::fill(to + begin * width, to + end * width, T(0));
      const std::int64_t last = std::lower_bound(bag, bag + n, end) - bag;
      for (std::int64_t i = std::lower_bound(bag, bag + n, begin) - bag; i < last; ++i) {
        // Rows lie anywhere: the first lines of those to come are asked for.
        const T* const ahead = from + rows[std::min(i + kAhead, last - 1)] * width;
        for (std::int64_t j = 0; j < std::min(width, kLinesAhead * kLine); j += kLine) __builtin_prefetch(ahead + j);
        const T* const row = from + rows[i] * width;
        T* const sums = to + bag[i] * width;
        for (std::int64_t j = 0; j < width; ++j) sums[j] += row[j];
      }
    });
  });
}

}  // namespace lockstep::detail
