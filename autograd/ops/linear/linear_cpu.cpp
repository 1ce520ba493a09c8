#include <algorithm>
#include <array>

#include "lockstep/autograd/ops/linear/linear_kernels.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

template <typename T>
void forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  const std::int64_t rows = x.sizes()[0], inputs = x.sizes()[1], outputs = weight.sizes()[0];
  cpu::gemm({.m = rows,
             .n = outputs,
             .k = inputs,
             .a = {.data = x.data<T>(), .stride = inputs},
             .b = {.data = weight.data<T>(), .stride = inputs, .transposed = true},
             .out = out.data<T>(),
             .out_stride = outputs,
             .bias = bias.defined() ? bias.data<T>() : nullptr,
             .activation = relu ? cpu::Activation::relu : cpu::Activation::none});
}

/// With the bits of forward<float>() on the values as float32, rounded.
void bfloat16_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  const std::int64_t rows = x.sizes()[0], inputs = x.sizes()[1], outputs = weight.sizes()[0];
  const Tensor wide_bias = bias.defined() ? cast_values(bias, kFloat32) : bias;
  cpu::multiply_bfloat16({.m = rows,
                          .n = outputs,
                          .k = inputs,
                          .a = {.data = x.data<BFloat16>(), .stride = inputs},
                          .b = {.data = weight.data<BFloat16>(), .stride = inputs, .transposed = true},
                          .out = out.data<BFloat16>(),
                          .out_stride = outputs,
                          .bias = wide_bias.defined() ? wide_bias.data<float>() : nullptr,
                          .activation = relu ? cpu::Activation::relu : cpu::Activation::none});
}

/// Of few rows, for which a float32 copy of the weight would be most of the work: a block of its rows at a time becomes
/// float32 in a core's own cache. The same bits as with the copy.
template <typename T>
void half_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  constexpr std::int64_t kElements = 32768, kRows = 32;  // of a block, at least
  constexpr std::int64_t kApart = 16;  // elements between two rows of a block, which would share places in a cache
  const std::int64_t rows = x.sizes()[0], inputs = x.sizes()[1], outputs = weight.sizes()[0];
  const Tensor wide_x = cast_values(x, kFloat32), wide = empty(out.sizes());
  const Tensor wide_bias = bias.defined() ? cast_values(bias, kFloat32) : bias;
  const std::int64_t width = std::max(kRows, kElements / inputs / kRows * kRows);
  parallel_for((outputs + width - 1) / width, 1, [&](std::int64_t begin, std::int64_t end) {
    const Tensor block = empty({std::min(width, outputs), inputs + kApart});
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * width, count = std::min(width, outputs - first);
      for (std::int64_t row = 0; row < count; ++row)
        cpu::widen_row(weight.data<T>() + (first + row) * inputs, inputs,
                       block.data<float>() + row * (inputs + kApart));
      cpu::gemm({.m = rows,
                 .n = count,
                 .k = inputs,
                 .a = {.data = wide_x.data<float>(), .stride = inputs},
                 .b = {.data = block.data<float>(), .stride = inputs + kApart, .transposed = true},
                 .out = wide.data<float>() + first,
                 .out_stride = outputs,
                 .bias = wide_bias.defined() ? wide_bias.data<float>() + first : nullptr,
                 .activation = relu ? cpu::Activation::relu : cpu::Activation::none});
    }
  });
  copy_values(wide, out);
}

}  // namespace

void linear_forward_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  profile::add_multiply_adds(out.numel() * x.size(-1));
  if (x.dtype() == kFloat32) return forward<float>(x, weight, bias, out, relu);
  if (x.dtype() == kFloat64) return forward<double>(x, weight, bias, out, relu);
  if (x.dtype() == kBFloat16 && cpu::goes_by_bfloat16_pairs(x.sizes()[0], weight.sizes()[0], x.sizes()[1]))
    return bfloat16_forward(x, weight, bias, out, relu);
  constexpr std::int64_t kFewRows = 16;
  if (x.sizes()[0] <= kFewRows && x.sizes()[1] > 0 && cpu::kernels() == cpu::Kernels::own) {
    if (x.dtype() == kBFloat16) return half_forward<BFloat16>(x, weight, bias, out, relu);
    return half_forward<Half>(x, weight, bias, out, relu);
  }
  const Tensor wide = empty(out.sizes());
  forward<float>(cast_values(x, kFloat32), cast_values(weight, kFloat32),
                 bias.defined() ? cast_values(bias, kFloat32) : bias, wide, relu);
  copy_values(wide, out);
}

// Columns are cut into blocks; within one, rows are added in order, in runs of kRun to keep rounding small.
void linear_bias_grad_cpu(const Tensor& grad, const Tensor& out) {
  constexpr std::int64_t kColumns = 64, kRun = 64;
  const std::int64_t rows = grad.sizes()[0], columns = grad.sizes()[1];
  const std::int64_t per_block = std::max<std::int64_t>(kColumns, cpu::kElementBlock / rows / kColumns * kColumns);
  dispatch_floating(grad.dtype(), "linear", [&]<typename T>() {
    using C = compute_t<T>;
    const T* values = grad.data<T>();
    parallel_for(columns, per_block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += kColumns) {
        const std::int64_t width = std::min(kColumns, end - first);
        std::array<C, kColumns> total{};
        for (std::int64_t start = 0; start < rows; start += kRun) {
          std::array<C, kColumns> run{};
          for (std::int64_t i = start; i < std::min(rows, start + kRun); ++i) {
            const T* row = values + i * columns + first;
            for (std::int64_t j = 0; j < width; ++j) run[j] += static_cast<C>(row[j]);
          }
          for (std::int64_t j = 0; j < width; ++j) total[j] += run[j];
        }
        for (std::int64_t j = 0; j < width; ++j) out.data<T>()[first + j] = static_cast<T>(total[j]);
      }
    });
  });
}

}  // namespace lockstep
