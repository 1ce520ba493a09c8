#include "lockstep/core/cuda/gemm.h"

#include <gtest/gtest.h>

#include "lockstep/core/cuda/dynamic_library.h"
#include "lockstep/core/cuda/gemm_operand.h"
#include "lockstep/core/cuda/math_mode.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

using cuda::Gemm;

// Every function of cuBLASLt that is used; no device is needed for it.
TEST(Gemm, FindsItsLibrary) {
  if (!cuda::cublaslt_library().is_available()) GTEST_SKIP() << cuda::cublaslt_library().why_unavailable();
  EXPECT_NO_THROW(cuda::require_gemm());
}

struct GemmCase {
  const char* name;
  std::int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  std::int64_t batch = 1;
  bool a_repeats = false;  // one a for the whole batch
  std::int64_t gap = 0;    // elements between rows
  double alpha = 1.0, beta = 0.0;
  bool bias = false, relu = false;

  friend std::ostream& operator<<(std::ostream& out, const GemmCase& c) { return out << c.name; }
};

const GemmCase kCases[] = {
    {.name = "plain", .m = 5, .n = 7, .k = 9},
    {.name = "a_transposed", .m = 5, .n = 7, .k = 9, .a_transposed = true},
    {.name = "b_transposed", .m = 5, .n = 7, .k = 9, .b_transposed = true},
    {.name = "both_transposed", .m = 5, .n = 7, .k = 9, .a_transposed = true, .b_transposed = true},
    {.name = "one_by_one", .m = 1, .n = 1, .k = 1},
    {.name = "batch", .m = 3, .n = 4, .k = 5, .batch = 6},
    {.name = "batch_transposed", .m = 3, .n = 4, .k = 5, .a_transposed = true, .b_transposed = true, .batch = 6},
    {.name = "repeated", .m = 3, .n = 4, .k = 5, .batch = 6, .a_repeats = true},
    {.name = "gaps", .m = 5, .n = 7, .k = 9, .a_transposed = true, .batch = 2, .gap = 3},
    {.name = "alpha_beta", .m = 5, .n = 7, .k = 9, .alpha = 0.5, .beta = -2.0},
    {.name = "bias", .m = 5, .n = 7, .k = 9, .bias = true},
    {.name = "bias_relu", .m = 5, .n = 7, .k = 9, .bias = true, .relu = true},
    {.name = "relu", .m = 5, .n = 7, .k = 9, .relu = true},
    {.name = "everything",
     .m = 8,
     .n = 16,
     .k = 24,
     .a_transposed = true,
     .b_transposed = true,
     .batch = 3,
     .gap = 8,
     .alpha = 2.0,
     .beta = 0.25,
     .bias = true,
     .relu = true},
    {.name = "large", .m = 130, .n = 70, .k = 300, .bias = true},
};

class GemmValues : public ::testing::TestWithParam<GemmCase> {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  }
};

// rows x columns matrices, or their transposes, stored with gaps.
struct Stored {
  Tensor values;  // float64, [batch, rows, columns], as meant
  Tensor device;
  cuda::GemmOperand operand;

  Stored(std::int64_t batch, std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t gap,
         std::uint32_t seed, DType dtype) {
    const std::int64_t outer = transposed ? columns : rows, inner = (transposed ? rows : columns) + gap;
    const Tensor all = cast_values(make_input({batch, outer, inner}, seed), dtype);
    device = move_values(all, test_device());
    const Shape strides = transposed ? Shape{outer * inner, 1, inner} : Shape{outer * inner, inner, 1};
    values = copy_contiguous(cast_values(all, kFloat64).as_strided({batch, rows, columns}, strides, 0));
    operand = {device.raw_data(), transposed, inner, outer * inner};
  }
};

Tensor expected_of(const GemmCase& c, const Tensor& a, const Tensor& b, const Tensor& before, const Tensor& bias) {
  Tensor out = zeros({c.batch, c.m, c.n}, {.dtype = kFloat64});
  const double *x = a.data<double>(), *y = b.data<double>(), *old = before.data<double>();
  for (std::int64_t t = 0; t < c.batch; ++t)
    for (std::int64_t i = 0; i < c.m; ++i)
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0.0;
        for (std::int64_t p = 0; p < c.k; ++p)
          sum += x[((c.a_repeats ? 0 : t) * c.m + i) * c.k + p] * y[(t * c.k + p) * c.n + j];
        sum = c.alpha * sum + c.beta * old[(t * c.m + i) * c.n + j] + (c.bias ? bias.data<double>()[j] : 0.0);
        out.data<double>()[(t * c.m + i) * c.n + j] = c.relu ? std::max(0.0, sum) : sum;
      }
  return out;
}

TEST_P(GemmValues, EqualAPlainSum) {
  const GemmCase& c = GetParam();
  for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
    SCOPED_TRACE(name(dtype));
    const Stored a(c.a_repeats ? 1 : c.batch, c.m, c.k, c.a_transposed, c.gap, 1, dtype);
    const Stored b(c.batch, c.k, c.n, c.b_transposed, c.gap, 2, dtype);
    const Stored out(c.batch, c.m, c.n, false, c.gap, 3, dtype);
    const Tensor bias = cast_values(make_input({c.n}, 4), dtype);
    const Tensor bias_there = move_values(bias, test_device());
    Gemm problem{.dtype = dtype, .m = c.m, .n = c.n, .k = c.k, .batch = c.batch, .a = a.operand, .b = b.operand};
    if (c.a_repeats) problem.a.batch_stride = 0;
    problem.out = out.device.raw_data();
    problem.out_stride = out.operand.stride;
    problem.out_batch_stride = out.operand.batch_stride;
    problem.alpha = c.alpha;
    problem.beta = c.beta;
    problem.bias = c.bias ? bias_there.raw_data() : nullptr;
    problem.relu = c.relu;
    cuda::gemm(problem, test_device().index);
    const Tensor all = cast_values(move_values(out.device, Device()), kFloat64);
    const std::int64_t inner = c.n + c.gap;
    const Tensor found = copy_contiguous(all.as_strided({c.batch, c.m, c.n}, {c.m * inner, inner, 1}, 0));
    const double tolerance = dtype == kFloat64 ? 1e-12 : dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 2e-3 : 1.6e-2;
    expect_close(found, expected_of(c, a.values, b.values, out.values, cast_values(bias, kFloat64)), tolerance,
                 tolerance * static_cast<double>(c.k));
    // What lies between the rows is nobody's to write.
    if (c.gap > 0)
      expect_close(copy_contiguous(all.as_strided({c.batch, c.m, c.gap}, {c.m * inner, inner, 1}, c.n)),
                   cast_values(cast_values(make_input({c.batch, c.m, inner}, 3), dtype), kFloat64)
                       .as_strided({c.batch, c.m, c.gap}, {c.m * inner, inner, 1}, c.n),
                   0.0, 0.0);
  }
}

// The pass of its own for the end of a product gives what the end of the product gives.
TEST_P(GemmValues, EndInAPassOfItsOwnAlike) {
  const GemmCase& c = GetParam();
  if (!c.bias && !c.relu) return;
  const Stored out(c.batch, c.m, c.n, false, c.gap, 3, kFloat32);
  const Tensor bias = move_values(cast_values(make_input({c.n}, 4), kFloat32), test_device());
  Gemm problem{.m = c.m, .n = c.n, .k = c.k, .batch = c.batch};
  problem.out = out.device.raw_data();
  problem.out_stride = out.operand.stride;
  problem.out_batch_stride = out.operand.batch_stride;
  problem.bias = c.bias ? bias.raw_data() : nullptr;
  problem.relu = c.relu;
  cuda::detail::add_bias_relu(problem, test_device().index);
  Tensor expected = copy_contiguous(out.values);
  for (std::int64_t i = 0; i < expected.numel(); ++i) {
    double& value = expected.data<double>()[i];
    if (c.bias) value += cast_values(move_values(bias, Device()), kFloat64).data<double>()[i % c.n];
    if (c.relu) value = std::max(0.0, value);
  }
  const std::int64_t inner = c.n + c.gap;
  const Tensor all = cast_values(move_values(out.device, Device()), kFloat64);
  expect_close(copy_contiguous(all.as_strided({c.batch, c.m, c.n}, {c.m * inner, inner, 1}, 0)), expected, 1e-6, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Cases, GemmValues, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

class GemmOperands : public GemmValues {};
TEST_F(GemmOperands, AreReadAsTheyLieOrCopied) {
  const Tensor base = zeros({4, 6, 8}, {.device = test_device()});
  struct Line {
    const char* name;
    Shape sizes, strides;
    std::int64_t offset;
    bool copied, transposed;
    std::int64_t stride, batch_stride;
  };
  for (const Line& line : std::vector<Line>{
           {"as it is", {4, 6, 8}, {48, 8, 1}, 0, false, false, 8, 48},
           {"transposed", {4, 8, 6}, {48, 1, 8}, 0, false, true, 8, 48},
           {"repeated", {5, 6, 8}, {0, 8, 1}, 0, false, false, 8, 0},
           {"two leading dimensions", {2, 2, 6, 8}, {96, 48, 8, 1}, 0, false, false, 8, 48},
           {"repeated within", {2, 3, 6, 8}, {48, 0, 8, 1}, 0, true, false, 8, 48},
           {"no dense dimension", {6, 4}, {8, 2}, 0, true, false, 4, 0},
           {"at an odd address", {6, 4}, {8, 1}, 1, true, false, 4, 0},
           {"overlapping rows", {4, 8}, {4, 1}, 0, true, false, 8, 0},
       }) {
    SCOPED_TRACE(line.name);
    Tensor t = base.as_strided(line.sizes, line.strides, line.offset);
    const void* before = t.raw_data();
    const cuda::GemmOperand operand = cuda::gemm_operand(t);
    EXPECT_EQ(t.raw_data() != before, line.copied);
    EXPECT_EQ(operand.data, t.raw_data());
    EXPECT_EQ(operand.transposed, line.transposed);
    EXPECT_EQ(operand.stride, line.stride);
    EXPECT_EQ(operand.batch_stride, line.batch_stride);
  }
}

}  // namespace
}  // namespace lockstep::testing
