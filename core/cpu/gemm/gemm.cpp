#include "lockstep/core/cpu/gemm/gemm.h"

#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/gemm/libraries.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/shape.h"

namespace lockstep::cpu {
namespace gemm_detail {
namespace {

// The memory of a batch of matrices as stored, from its first element to behind its last.
template <typename T>
struct Extent {
  const T *begin, *end;
  Extent(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t batch,
         std::int64_t batch_stride)
      : begin(data), end(data + (batch - 1) * batch_stride + (rows - 1) * stride + columns) {}
  bool overlaps(const Extent& other) const {
    const std::less<const T*> before;
    return before(begin, other.end) && before(other.begin, end);
  }
};

template <typename T>
void check_operand(const Gemm<T>& g, const char* name, const GemmOperand<T>& operand, std::int64_t rows,
                   std::int64_t columns) {
  if (operand.transposed) std::swap(rows, columns);
  LOCKSTEP_CHECK(operand.stride >= columns && operand.batch_stride >= 0,
                 "[gemm] {}: rows of {} elements, {} apart, matrices {} apart; expected strides of at least a row, and "
                 "no negative one",
                 name, columns, operand.stride, operand.batch_stride);
  const Extent<T> out(g.out, g.m, g.n, g.out_stride, g.batch, g.out_batch_stride);
  LOCKSTEP_CHECK(!out.overlaps({operand.data, rows, columns, operand.stride, g.batch, operand.batch_stride}),
                 "[gemm] the result overlaps operand {} in memory; write it somewhere else", name);
}

template <typename T>
void check_problem(const Gemm<T>& g) {
  constexpr std::int64_t limit = std::numeric_limits<int>::max();
  LOCKSTEP_CHECK(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0,
                 "[gemm] m {}, n {}, k {}, batch {}: expected no negative size", g.m, g.n, g.k, g.batch);
  LOCKSTEP_CHECK(g.m <= limit && g.n <= limit && g.k <= limit && g.a.stride <= limit && g.b.stride <= limit &&
                     g.out_stride <= limit,
                 "[gemm] a matrix side is too long: m {}, n {}, k {}; expected at most {}", g.m, g.n, g.k, limit);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  LOCKSTEP_CHECK(
      g.out_stride >= g.n && (g.batch == 1 || g.out_batch_stride >= (g.m - 1) * g.out_stride + g.n),
      "[gemm] out: rows of {} elements, {} apart, {} matrices of {} rows, {} apart; expected that none overlap", g.n,
      g.out_stride, g.batch, g.m, g.out_batch_stride);
  if (g.k == 0 || g.alpha == T(0)) return;
  check_operand(g, "a", g.a, g.m, g.k);
  check_operand(g, "b", g.b, g.k, g.n);
}

template <typename T>
void run(const Gemm<T>& g) {
  check_problem(g);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.k == 0 || g.alpha == T(0)) {
    for (std::int64_t i = 0; i < g.batch; ++i) finish_rows(g, g.out + i * g.out_batch_stride, 0, g.m, g.beta);
    return;
  }
  // An operation on batches computes thousands of small ones, which would take less time than their events: those are
  // part of what the operation takes.
  constexpr double kWorthAnEvent = 1 << 18;
  std::optional<profile::Scope> scope;
  if (profile::enabled()) [[unlikely]] {
    const auto multiply_adds = static_cast<double>(g.batch * g.m) * static_cast<double>(g.n * g.k);
    if (multiply_adds >= kWorthAnEvent) scope.emplace("gemm", "gemm");
    if (scope && scope->active()) scope->add(g.batch == 1 ? Shape{g.m, g.n, g.k} : Shape{g.batch, g.m, g.n, g.k});
  }
  if (kernels() == Kernels::own)
    multiply_own(g, instruction_set());
  else
    multiply_libraries(g);
}

}  // namespace

Kernels choose_kernels(const char* value) {  // null: not set
  const std::string_view wanted = value ? value : "";
  LOCKSTEP_CHECK(wanted.empty() || wanted == "own" || wanted == "libraries",
                 "LOCKSTEP_KERNELS is '{}'; expected own or libraries", wanted);
  return wanted == "libraries" ? Kernels::libraries : Kernels::own;
}

}  // namespace gemm_detail

void gemm(const Gemm<float>& problem) {
  gemm_detail::run(problem);
}
void gemm(const Gemm<double>& problem) {
  gemm_detail::run(problem);
}

Kernels kernels() {
  static const Kernels chosen = [] {
    if (std::getenv("LOCKSTEP_CPU")) instruction_set();  // a wrong value is an error even where nothing depends on it
    return gemm_detail::choose_kernels(std::getenv("LOCKSTEP_KERNELS"));
  }();
  return chosen;
}

const char* gemm_library(Kernels whose) {
  if (whose == Kernels::libraries) return gemm_detail::library_name();
  static const std::string own = std::string("own, ") + name(instruction_set());
  return own.c_str();
}

}  // namespace lockstep::cpu
