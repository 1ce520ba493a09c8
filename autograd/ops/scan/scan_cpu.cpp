#include <algorithm>

#include "lockstep/autograd/ops/scan/scan_loop.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {

void scan_cpu(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse) {
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  const std::int64_t first = reverse ? (length - 1) * inner : 0, step = reverse ? -inner : inner;
  const auto run = [&]<typename T>() {
    using C = compute_t<T>;
    const T* from = x.data<T>();
    const T* other = y.defined() ? y.data<T>() : nullptr;
    T* to = out.data<T>();
    parallel_for(outer * inner, std::max<std::int64_t>(1, cpu::kElementBlock / length),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t at = i / inner * length * inner + i % inner + first;
                     scan_slice<C>(
                         scan, from + at, other ? other + at : nullptr, to + at, length, step,
                         [](T value) { return static_cast<C>(value); }, [](C value) { return static_cast<T>(value); });
                   }
                 });
  };
  if (x.dtype() == kInt64) return run.template operator()<std::int64_t>();
  dispatch_floating(x.dtype(), "cumsum", run);
}

}  // namespace lockstep
