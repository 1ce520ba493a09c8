#pragma once

// What the micro-kernels ask for before they need it. Included by the file of each instruction set: Note [One
// instruction set a file] in micro_kernel_body.h.

#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

constexpr int kAskSteps = 16;   // steps between two groups of lines that a long chain asks for
constexpr int kLaterPlace = 2;  // what is asked for long before goes to the second level

// What asks for nothing in the course of a chain.
struct AsksNothing {};

// Asks for `count` lines of the cache of each row of a panel, or of as many steps of one by columns, from number
// `from`.
template <typename T, int kRows, bool kByRows>
[[gnu::always_inline]] inline void ask_for_panel(const T* panel, std::int64_t a_row, std::int64_t a_step,
                                                 std::int64_t from, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t line = from; line < from + count; ++line) {
    if constexpr (kByRows) {
      for (int i = 0; i < kRows; ++i) __builtin_prefetch(panel + i * a_row + line * kLine);
    } else {
      __builtin_prefetch(panel + line * a_step);
    }
  }
}

// What a tile of a long chain asks for besides what its steps are about to read: lines of the next panel of a, those of
// its result, and what comes from far. There are few places for lines on their way, and the steps need them too: all at
// once they would wait.
template <typename T, int kRows, bool kByRows>
class SpreadAsks {
 public:
  explicit SpreadAsks(const Tile<T>& tile) : panel_(tile.next), out_stride_(tile.out_stride), later_(tile.later) {
    const std::int64_t tiles = tile.tiles > 0 ? tile.tiles : 1;
    // add_steps() calls some() before each kAskSteps steps but the last.
    const std::int64_t calls = tile.k > kAskSteps ? (tile.k - 1) / kAskSteps : 1;
    rows_each_ = (kRows + calls - 1) / calls;
    if (later_) {
      later_left_ = tile.later_rows * tile.later_lines;
      later_lines_ = tile.later_lines;
      later_gap_ = tile.later_row - tile.later_lines * kLine;
      later_share_ = later_left_ / (calls * tiles) + 1;
    }
    if (!panel_) return;
    // Lines of each row, or steps of a panel by columns.
    const std::int64_t lines = kByRows ? (tile.k + kLine - 1) / kLine : tile.k, of_each = kByRows ? kRows : 1;
    left_ = lines * of_each;
    each_ = (lines / tiles + 1) * of_each;
    share_ = each_ * kAskSteps / tile.k + 1;
    step_ = kByRows ? tile.a_row : tile.a_step;
  }
  // The tile that begins now; its rows end `last` elements behind their first.
  [[gnu::always_inline]] void begin(T* out, std::int64_t last) {
    out_ = out;
    last_ = last;
    rows_ = kRows;
    now_ = left_ < each_ ? left_ : each_;
    left_ -= now_;
  }
  [[gnu::always_inline]] void some() {
    for (std::int64_t i = rows_each_; i > 0 && rows_ > 0; --i, --rows_) {
      __builtin_prefetch(out_, 1);
      __builtin_prefetch(out_ + last_, 1);
      out_ += out_stride_;
    }
    for (std::int64_t i = share_; i > 0 && now_ > 0; --i, --now_) {
      __builtin_prefetch(panel_);
      panel_ += step_;
      if (kByRows && ++row_ == kRows) {
        row_ = 0;
        panel_ += kLine - kRows * step_;
      }
    }
    for (std::int64_t i = later_share_; i > 0 && later_left_ > 0; --i, --later_left_) {
      __builtin_prefetch(later_, 0, kLaterPlace);
      later_ += kLine;
      if (++later_line_ == later_lines_) {
        later_line_ = 0;
        later_ += later_gap_;
      }
    }
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);

  const T* panel_;
  std::int64_t left_ = 0, each_ = 0, share_ = 0, now_ = 0, step_ = 0, row_ = 0;
  T* out_ = nullptr;
  std::int64_t out_stride_, last_ = 0, rows_ = 0, rows_each_ = 1;
  const T* later_;
  std::int64_t later_left_ = 0, later_share_ = 0, later_line_ = 0, later_lines_ = 0, later_gap_ = 0;
};

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
