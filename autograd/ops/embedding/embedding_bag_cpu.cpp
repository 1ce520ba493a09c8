#include <algorithm>
#include <type_traits>

#include "lockstep/autograd/ops/embedding/embedding_bag_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void bag_sums_cpu(const Tensor& weight, const Tensor& index, const Tensor& bags, const Tensor& out) {
  const std::int64_t n = index.numel(), count = out.size(0), width = out.size(1);
  const std::int64_t *rows = index.data<std::int64_t>(), *bag = bags.data<std::int64_t>();
  const std::int64_t block = std::max<std::int64_t>(1, cpu::kElementBlock * count / std::max(count, n * width));
  dispatch_compute(out.dtype(), "embedding_bag", [&]<typename T>() {
    constexpr std::int64_t kStrip = 256 / sizeof(T), kAhead = 4, kLine = 64 / sizeof(T);
    const T* from = weight.data<T>();
    // The sums of a strip stay in registers.
    const auto add_strip = [&]<bool kWhole>(std::int64_t i, std::int64_t end, std::int64_t at, std::int64_t columns,
                                            T* to, std::bool_constant<kWhole>) {
      T sums[kStrip] = {};
      const std::int64_t length = kWhole ? kStrip : columns;
      for (; i < end; ++i) {
        const T* const ahead = from + rows[std::min(i + kAhead, n - 1)] * width + at;  // rows lie anywhere
        for (std::int64_t j = 0; j < length; j += kLine) __builtin_prefetch(ahead + j);
        const T* const row = from + rows[i] * width + at;
        for (std::int64_t j = 0; j < length; ++j) sums[j] += row[j];
      }
      std::copy_n(sums, length, to);
    };
    lockstep::parallel_for(count, block, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t first = std::lower_bound(bag, bag + n, begin) - bag;
      for (std::int64_t b = begin; b < end; ++b) {
        std::int64_t last = first;
        while (last < n && bag[last] == b) ++last;
        T* const to = out.data<T>() + b * width;
        std::int64_t at = 0;
        for (; at + kStrip <= width; at += kStrip) add_strip(first, last, at, kStrip, to + at, std::true_type());
        if (at < width) add_strip(first, last, at, width - at, to + at, std::false_type());
        first = last;
      }
    });
  });
}

}  // namespace lockstep::detail
