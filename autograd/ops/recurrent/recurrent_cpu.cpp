#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lockstep/autograd/ops/recurrent/recurrent_cells.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

/// Units of some tens of operations to a block.
constexpr std::int64_t kUnitBlock = 1024;
/// Columns of a panel of prepare_hidden_cpu().
constexpr std::int64_t kPanelColumns = 64;

/// Calls part(row, first unit, last unit) for pieces of rows, in parallel.
template <typename Part>
void for_each_part(std::int64_t rows, std::int64_t width, Part&& part) {
  parallel_for(rows * width, kUnitBlock, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t row = begin / width, stop = std::min(end, (row + 1) * width);
      part(row, begin - row * width, stop - row * width);
      begin = stop;
    }
  });
}

/// Calls run.operator()<kind>() with the cell as a constant.
template <typename Run>
void with_cell(RecurrentCell cell, Run&& run) {
  switch (cell) {
    case RecurrentCell::rnn_tanh:
      return run.template operator()<RecurrentCell::rnn_tanh>();
    case RecurrentCell::rnn_relu:
      return run.template operator()<RecurrentCell::rnn_relu>();
    case RecurrentCell::lstm:
      return run.template operator()<RecurrentCell::lstm>();
    case RecurrentCell::gru:
      return run.template operator()<RecurrentCell::gru>();
  }
}

// Units [begin, end) of a row.
template <RecurrentCell kCell, bool kReserves, typename T>
void forward_units(const cells::Addresses<T> a, std::int64_t row, std::int64_t begin, std::int64_t end,
                   std::int64_t width) {
  using C = compute_t<T>;
  LOCKSTEP_VECTORIZE
  for (std::int64_t unit = begin; unit < end; ++unit)
    cells::forward_unit<C>(
        kReserves, kCell, a, row, unit, width, [](T value) { return static_cast<C>(value); },
        [](C value) { return static_cast<T>(value); });
}
template <RecurrentCell kCell, typename T>
void backward_units(const cells::GradientAddresses<T> a, std::int64_t row, std::int64_t begin, std::int64_t end,
                    std::int64_t width) {
  using C = compute_t<T>;
  LOCKSTEP_VECTORIZE
  for (std::int64_t unit = begin; unit < end; ++unit)
    cells::backward_unit<C>(
        kCell, a, row, unit, width, [](T value) { return static_cast<C>(value); },
        [](C value) { return static_cast<T>(value); });
}

}  // namespace

void cell_cpu(RecurrentCell cell, const CellStep& step) {
  const std::int64_t rows = step.h.size(0), width = step.h.size(1);
  dispatch_floating(step.h.dtype(), "recurrent", [&]<typename T>() {
    const cells::Addresses<T> a(step);
    with_cell(cell, [&]<RecurrentCell kCell>() {
      for_each_part(rows, width, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        if (a.reserve)
          cpu::by_widest_vectors([=] { forward_units<kCell, true>(a, row, begin, end, width); });
        else
          cpu::by_widest_vectors([=] { forward_units<kCell, false>(a, row, begin, end, width); });
      });
    });
  });
}

void cell_backward_cpu(RecurrentCell cell, const CellGradient& step) {
  const std::int64_t rows = step.h_grad.size(0), width = step.h_grad.size(1);
  dispatch_floating(step.h_grad.dtype(), "recurrent backward", [&]<typename T>() {
    const cells::GradientAddresses<T> a(step);
    with_cell(cell, [&]<RecurrentCell kCell>() {
      for_each_part(rows, width, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        cpu::by_widest_vectors([=] { backward_units<kCell>(a, row, begin, end, width); });
      });
    });
  });
}

Tensor prepare_hidden_cpu(const Tensor& matrix) {
  const std::int64_t k = matrix.size(0), n = matrix.size(1), count = (n + kPanelColumns - 1) / kPanelColumns;
  const bool is_half = matrix.dtype() == kFloat16 || matrix.dtype() == kBFloat16;
  const Tensor panels = empty({count, k, kPanelColumns}, {.dtype = is_half ? kFloat32 : matrix.dtype()});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = i * kPanelColumns, width = std::min(kPanelColumns, n - first);
    copy_values(matrix.narrow(1, first, width), panels.select(0, i).narrow(1, 0, width));
  }
  return panels;
}

void hidden_product_cpu(const Tensor& x, const Tensor& panels, const Tensor& bias, const Tensor& out) {
  constexpr double kBlockFlops = 2e6;        // of a block of parallel_for, about
  constexpr std::int64_t kRowsOfAPanel = 6;  // fewer take no less time: reading the panel does
  const std::int64_t m = x.size(0), k = x.size(1), n = out.size(1);
  profile::add_multiply_adds(m * n * k);
  const Tensor from = cast_values(x, panels.dtype());
  const Tensor addend = bias.defined() ? cast_values(bias, panels.dtype()) : bias;
  const Tensor product = out.dtype() == panels.dtype() ? out : empty(out.sizes(), {.dtype = panels.dtype()});
  const double flops = 2.0 * static_cast<double>(std::max(m, kRowsOfAPanel)) * static_cast<double>(panels.numel());
  const auto blocks = std::max<std::int64_t>(1, std::llround(flops / kBlockFlops));
  dispatch_floating(panels.dtype(), "recurrent products", [&]<typename T>() {
    if constexpr (std::is_same_v<T, compute_t<T>>)
      parallel_for(panels.size(0), (panels.size(0) + blocks - 1) / blocks, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t first = i * kPanelColumns;
          cpu::gemm({.m = m,
                     .n = std::min(kPanelColumns, n - first),
                     .k = k,
                     .a = {.data = from.data<T>(), .stride = k},
                     .b = {.data = panels.data<T>() + first * k, .stride = kPanelColumns},
                     .out = product.data<T>() + first,
                     .out_stride = n,
                     .bias = addend.defined() ? addend.data<T>() + first : nullptr});
        }
      });
  });
  if (out.dtype() != panels.dtype()) copy_values(product, out);
}

}  // namespace lockstep
