// What is done to a result beside its sums, with the same bits whatever the product was computed with.

#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::cpu::gemm_detail {
namespace {

template <typename T>
void gelu_impl(T* values, std::int64_t count) {
  write_row(values, count, [values](std::int64_t i) { return values[i] * math::normal(values[i]).cumulative; });
}

template <typename T>
void finish_impl(const Gemm<T>& g, T* out, std::int64_t begin, std::int64_t end, T beta) {
  for (std::int64_t i = begin; i < end; ++i) {
    T* const row = out + i * g.out_stride;
    if (beta == T(0))
      for (std::int64_t j = 0; j < g.n; ++j) row[j] = 0;
    else if (beta != T(1))
      for (std::int64_t j = 0; j < g.n; ++j) row[j] *= beta;
    if (g.bias)
      for (std::int64_t j = 0; j < g.n; ++j) row[j] += g.bias[j];
    if (g.row_bias)
      for (std::int64_t j = 0; j < g.n; ++j) row[j] += g.row_bias[i];
    if (g.activation == Activation::relu)
      for (std::int64_t j = 0; j < g.n; ++j) row[j] = row[j] < T(0) ? T(0) : row[j];
    if (g.activation == Activation::gelu) gelu(row, g.n);
  }
}

}  // namespace

void gelu(float* values, std::int64_t count) {
  gelu_impl(values, count);
}
void gelu(double* values, std::int64_t count) {
  gelu_impl(values, count);
}

void finish_rows(const Gemm<float>& problem, float* out, std::int64_t begin, std::int64_t end, float beta) {
  finish_impl(problem, out, begin, end, beta);
}
void finish_rows(const Gemm<double>& problem, double* out, std::int64_t begin, std::int64_t end, double beta) {
  finish_impl(problem, out, begin, end, beta);
}

}  // namespace lockstep::cpu::gemm_detail
