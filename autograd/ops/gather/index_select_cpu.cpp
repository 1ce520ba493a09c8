#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {

void check_index_range(const std::int64_t* index, std::int64_t n, std::int64_t size, const char* op) {
  constexpr std::int64_t kBlock = 1024;  // looked at together, by vectors, and one by one if any is wrong
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    std::int64_t negative = 0, most = 0;
    for (std::int64_t k = begin; k < end; ++k) {
      negative |= index[k];
      most = std::max(most, index[k]);
    }
    if (negative >= 0 && most < size) continue;
    for (std::int64_t k = begin; k < end; ++k)
      LOCKSTEP_CHECK(index[k] >= 0 && index[k] < size,
                     "[{}] index {} at position {} is out of range; expected a value in [0, {})", op, index[k], k,
                     size);
  }
}

namespace {

/// Rows of the index that lie one behind the other, upwards or downwards: they are copied together.
struct Run {
  std::int64_t first, count;  // of the index
  std::int64_t step;          // 1 or -1
};

/// The index as runs, if they are few.
std::vector<Run> runs_of(const std::int64_t* rows, std::int64_t n) {
  constexpr std::int64_t kLeast = 16;  // rows of a run, on average
  std::vector<Run> runs;
  for (std::int64_t k = 0; k < n;) {
    if (static_cast<std::int64_t>(runs.size()) * kLeast > n) return {};
    const std::int64_t step = k + 1 < n && rows[k + 1] == rows[k] - 1 ? -1 : 1;
    std::int64_t end = k + 1;
    while (end < n && rows[end] == rows[end - 1] + step) ++end;
    runs.push_back({k, end - k, step});
    k = end;
  }
  return runs;
}

template <typename T>
void copy_runs(const std::vector<Run>& runs, const std::int64_t* rows, const T* from, T* to) {
  for (const Run& run : runs) {
    const T* const source = from + rows[run.first];
    T* const target = to + run.first;
    if (run.step == 1)
      std::copy_n(source, run.count, target);
    else
      for (std::int64_t i = 0; i < run.count; ++i) target[i] = source[-i];
  }
}

}  // namespace

void index_select_cpu(const Tensor& x, const Tensor& index, const Tensor& out, const char* op) {
  const std::int64_t* rows = index.data<std::int64_t>();
  const std::int64_t outer = out.size(0), n = out.size(1), inner = out.size(2), size = x.size(1);
  check_index_range(rows, n, size, op);
  if (out.numel() == 0) return;
  const std::vector<Run> runs = inner == 1 && outer > 1 ? runs_of(rows, n) : std::vector<Run>();
  dispatch_all(x.dtype(), op, [&]<typename T>() {
    const T* source = x.data<T>();
    T* target = out.data<T>();
    if (!runs.empty()) {
      lockstep::parallel_for(outer, std::max<std::int64_t>(1, cpu::kElementBlock / n),
                             [&](std::int64_t begin, std::int64_t end) {
                               for (std::int64_t o = begin; o < end; ++o)
                                 copy_runs(runs, rows, source + o * size, target + o * n);
                             });
      return;
    }
    lockstep::parallel_for(
        outer * n, std::max<std::int64_t>(1, cpu::kElementBlock / inner), [&](std::int64_t begin, std::int64_t end) {
          while (begin < end) {
            const std::int64_t o = begin / n, k = begin % n, count = std::min(n - k, end - begin);
            const T* block = source + o * size * inner;
            T* to = target + begin * inner;
            if (inner == 1) {
              for (std::int64_t i = 0; i < count; ++i) to[i] = block[rows[k + i]];
            } else {
              for (std::int64_t i = 0; i < count; ++i)
                std::memcpy(to + i * inner, block + rows[k + i] * inner, static_cast<std::size_t>(inner) * sizeof(T));
            }
            begin += count;
          }
        });
  });
}

namespace {

/// The elements of the index by the range of rows, of `parts` nearly equal ones, that they point to: those of a range
/// in their order.
struct ByRange {
  std::vector<std::int64_t> begin;  ///< of each range in `order`, and the end
  std::vector<std::int64_t> order;

  ByRange(const std::int64_t* rows, std::int64_t n, std::int64_t size, std::int64_t parts)
      : begin(static_cast<std::size_t>(parts + 1)), order(static_cast<std::size_t>(n)) {
    const std::int64_t length = (size + parts - 1) / parts;
    std::vector<std::int64_t> next(begin.size());
    for (std::int64_t k = 0; k < n; ++k) ++next[static_cast<std::size_t>(rows[k] / length + 1)];
    std::partial_sum(next.begin(), next.end(), begin.begin());
    next = begin;
    for (std::int64_t k = 0; k < n; ++k)
      order[static_cast<std::size_t>(next[static_cast<std::size_t>(rows[k] / length)]++)] = k;
  }
};

}  // namespace

void index_add_cpu(const Tensor& grad, const Tensor& index, const Tensor& out) {
  const std::int64_t* rows = index.data<std::int64_t>();
  const std::int64_t outer = grad.size(0), n = grad.size(1), inner = grad.size(2), size = out.size(1);
  // Threads own ranges of out's rows, so that every row adds its gradients in index order, however many there are.
  const std::int64_t work = n * inner, threads = num_threads();
  const bool shared = threads > 1 && outer < threads && work > 4 * cpu::kElementBlock && size > 1;
  const std::int64_t parts = shared ? std::min(4 * threads, size) : 1;
  std::optional<ByRange> ranges;
  if (shared) ranges.emplace(rows, n, size, parts);
  const std::int64_t block = std::max<std::int64_t>(1, cpu::kElementBlock * parts / work);
  const auto add = [&]<typename T>() {
    constexpr std::int64_t kAhead = 8, kLine = 64 / sizeof(T);
    const T* const gradients = grad.data<T>();
    T* const sums = out.data<T>();
    const auto add_row = [=](std::int64_t o, std::int64_t k) __attribute__((always_inline)) {
      const T* __restrict const from = gradients + (o * n + k) * inner;
      T* __restrict const to = sums + (o * size + rows[k]) * inner;
      for (std::int64_t j = 0; j < inner; ++j) to[j] = wrapping_sum<T>(to[j], from[j]);
    };
    // Rows that are far apart are asked for ahead, the first lines of long ones.
    const auto ask_for_row = [=](std::int64_t o, std::int64_t k) __attribute__((always_inline)) {
      for (std::int64_t j = 0; j < std::min(inner, kAhead * kLine); j += kLine)
        __builtin_prefetch(sums + (o * size + rows[k]) * inner + j, 1);
    };
    lockstep::parallel_for(outer * parts, block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t o = task / parts, part = task % parts;
        if (ranges) {
          const auto at = static_cast<std::size_t>(part);
          const std::int64_t* const order = ranges->order.data();
          const std::int64_t last = ranges->begin[at + 1];
          for (std::int64_t i = ranges->begin[at]; i < last; ++i) {
            const std::int64_t ahead = order[std::min(i + kAhead, last - 1)];
            for (std::int64_t j = 0; j < std::min(inner, kAhead * kLine); j += kLine)
              __builtin_prefetch(gradients + (o * n + ahead) * inner + j);
            ask_for_row(o, ahead);
            add_row(o, order[i]);
          }
        } else if (inner == 1) {
          const T* from = gradients + o * n;
          T* to = sums + o * size;
          for (std::int64_t k = 0; k < n; ++k) to[rows[k]] = wrapping_sum<T>(to[rows[k]], from[k]);
        } else {
          for (std::int64_t k = 0; k < n; ++k) {
            ask_for_row(o, std::min(k + kAhead, n - 1));
            add_row(o, k);
          }
        }
      }
    });
  };
  if (out.dtype() == kInt64)
    add.template operator()<std::int64_t>();
  else
    dispatch_floating(out.dtype(), "index_select backward", add);
}

}  // namespace lockstep::detail
