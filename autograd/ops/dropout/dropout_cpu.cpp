#include <algorithm>

#include "lockstep/autograd/ops/dropout/dropout_kernels.h"
#include "lockstep/core/cpu/philox_words.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

namespace {

/// mask[i] for begin <= i < end.
void fill_mask(const DropoutPlan& plan, std::uint8_t* mask, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    // Words of neighbouring numbers; of a part, those of one row.
    const std::int64_t stop = plan.row == 0 ? end : std::min(end, (begin / plan.row + 1) * plan.row);
    cpu::for_each_words(plan.key.get(), plan.word_of(begin), stop - begin,
                        [&](std::int64_t at, const std::uint32_t* words, std::int64_t count) {
                          std::uint8_t* const keep = mask + begin + at;
                          for (std::int64_t i = 0; i < count; ++i) keep[i] = words[i] >= plan.threshold;
                        });
    begin = stop;
  }
}

template <typename T>
void apply_mask(const T* __restrict x, const std::uint8_t* __restrict mask, T* __restrict out, std::int64_t n,
                compute_t<T> scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    const compute_t<T> value = static_cast<compute_t<T>>(x[i]) * scale;
    out[i] = T(mask[i] ? value : compute_t<T>(0));
  }
}

template <typename T>
void apply_scale(const T* __restrict x, T* __restrict out, std::int64_t n, compute_t<T> scale) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(static_cast<compute_t<T>>(x[i]) * scale);
}

/// Calls before(begin, end) on a block of mask elements, then masks the elements they stand for.
template <typename Before>
void apply_blocks(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan, Before&& before) {
  std::uint8_t* keep = mask.data<std::uint8_t>();
  dispatch_floating(x.dtype(), "dropout", [&]<typename T>() {
    const T* source = x.data<T>();
    T* target = out.data<T>();
    const auto scale = static_cast<compute_t<T>>(plan.scale);
    const std::int64_t inner = plan.inner;
    const std::int64_t block = inner == 1 ? cpu::kElementBlock : std::max<std::int64_t>(1, cpu::kElementBlock / inner);
    lockstep::parallel_for(mask.numel(), block, [&](std::int64_t begin, std::int64_t end) {
      before(begin, end);
      if (inner == 1) {
        apply_mask(source + begin, keep + begin, target + begin, end - begin, scale);
        return;
      }
      for (std::int64_t m = begin; m < end; ++m) {
        if (keep[m])
          apply_scale(source + m * inner, target + m * inner, inner, scale);
        else
          std::fill_n(target + m * inner, inner, T(0));
      }
    });
  });
}

}  // namespace

void dropout_cpu(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  std::uint8_t* keep = mask.data<std::uint8_t>();
  if (plan.inner == 1) {
    apply_blocks(x, mask, out, plan, [&](std::int64_t begin, std::int64_t end) { fill_mask(plan, keep, begin, end); });
  } else {
    fill_mask(plan, keep, 0, mask.numel());
    dropout_apply_cpu(x, mask, out, plan);
  }
}

void dropout_apply_cpu(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  apply_blocks(x, mask, out, plan, [](std::int64_t, std::int64_t) {});
}

}  // namespace lockstep::detail
