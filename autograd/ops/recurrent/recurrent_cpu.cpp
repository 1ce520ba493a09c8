#include <algorithm>

#include "lockstep/autograd/ops/recurrent/recurrent_cells.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

/// Units of some tens of operations to a block.
constexpr std::int64_t kUnitBlock = 1024;

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
void with_cell(Cell cell, Run&& run) {
  switch (cell) {
    case Cell::rnn_tanh:
      return run.template operator()<Cell::rnn_tanh>();
    case Cell::rnn_relu:
      return run.template operator()<Cell::rnn_relu>();
    case Cell::lstm:
      return run.template operator()<Cell::lstm>();
    case Cell::gru:
      return run.template operator()<Cell::gru>();
  }
}

}  // namespace

void cell_cpu(Cell cell, const CellStep& step) {
  const std::int64_t rows = step.h.size(0), width = step.h.size(1);
  dispatch_floating(step.h.dtype(), "recurrent", [&]<typename T>() {
    using C = compute_t<T>;
    const cells::Addresses<T> a(step);
    with_cell(cell, [&]<Cell kCell>() {
      for_each_part(rows, width, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        const cells::Addresses<T> local = a;
        LOCKSTEP_VECTORIZE
        for (std::int64_t unit = begin; unit < end; ++unit)
          cells::forward_unit<C>(
              kCell, local, row, unit, width, [](T value) { return static_cast<C>(value); },
              [](C value) { return static_cast<T>(value); });
      });
    });
  });
}

void cell_backward_cpu(Cell cell, const CellGradient& step) {
  const std::int64_t rows = step.h_grad.size(0), width = step.h_grad.size(1);
  dispatch_floating(step.h_grad.dtype(), "recurrent backward", [&]<typename T>() {
    using C = compute_t<T>;
    const cells::GradientAddresses<T> a(step);
    with_cell(cell, [&]<Cell kCell>() {
      for_each_part(rows, width, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        const cells::GradientAddresses<T> local = a;
        LOCKSTEP_VECTORIZE
        for (std::int64_t unit = begin; unit < end; ++unit)
          cells::backward_unit<C>(
              kCell, local, row, unit, width, [](T value) { return static_cast<C>(value); },
              [](C value) { return static_cast<T>(value); });
      });
    });
  });
}

}  // namespace lockstep
