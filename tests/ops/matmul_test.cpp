#include "lockstep/autograd/ops/matmul/matmul.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/core/kernel_table.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// Element [i, j] of matrix `index` of the broadcast batch, in double.
struct Operand {
  std::vector<double> values;
  Shape sizes;
  double at(const Shape& leading, std::int64_t index, std::int64_t i, std::int64_t j) const {
    std::int64_t offset = 0, step = sizes[sizes.dim() - 1] * sizes[sizes.dim() - 2];
    for (int d = 1; d <= leading.dim(); ++d) {
      const std::int64_t position = index % leading[leading.dim() - d];
      index /= leading[leading.dim() - d];
      const int own = sizes.dim() - 2 - d;
      if (own < 0) continue;
      if (sizes[own] != 1) offset += position * step;
      step *= sizes[own];
    }
    return values[static_cast<std::size_t>(offset + i * sizes[sizes.dim() - 1] + j)];
  }
};

// The rules of torch.matmul, by plain loops.
Tensor expected_product(const Tensor& a, const Tensor& b) {
  Operand left{a.to_vector<double>(), a.sizes()}, right{b.to_vector<double>(), b.sizes()};
  if (a.dim() == 1) left.sizes.insert(0, 1);
  if (b.dim() == 1) right.sizes.push_back(1);
  Shape lead_a, lead_b;
  for (int d = 0; d < left.sizes.dim() - 2; ++d) lead_a.push_back(left.sizes[d]);
  for (int d = 0; d < right.sizes.dim() - 2; ++d) lead_b.push_back(right.sizes[d]);
  const Shape leading = broadcast_shapes(lead_a, lead_b, "test");
  const std::int64_t m = left.sizes[left.sizes.dim() - 2], k = left.sizes.back(), n = right.sizes.back();
  std::vector<double> out;
  for (std::int64_t index = 0; index < leading.numel(); ++index)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t p = 0; p < k; ++p) sum += left.at(leading, index, i, p) * right.at(leading, index, p, j);
        out.push_back(sum);
      }
  Shape sizes = leading;
  if (a.dim() > 1) sizes.push_back(m);
  if (b.dim() > 1) sizes.push_back(n);
  const Tensor flat = tensor(out);
  return flat.as_strided(sizes, contiguous_strides(sizes), 0);
}

struct Case {
  Shape a, b;
};

class MatmulCases : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulCases, values) {
  const auto& [a, b] = GetParam();
  const Tensor x = make_input(a, 1), y = make_input(b, 2);
  expect_close(matmul(x, y), expected_product(x, y), 1e-12, 1e-12);
}

TEST_P(MatmulCases, strided) {
  const auto& [a, b] = GetParam();
  const Tensor x = make_input(a, 1), y = make_input(b, 2);
  expect_close(matmul(make_strided(x), make_strided(y)), expected_product(x, y), 1e-12, 1e-12);
}

class MatmulGradients : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulGradients, equal_central_differences) {
  const auto& [a, b] = GetParam();
  gradcheck([](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); }, {make_leaf(a, 1), make_leaf(b, 2)});
}

TEST_P(MatmulCases, reference_kernel) {
  const auto& [a, b] = GetParam();
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = make_input(a, 1, dtype), y = make_input(b, 2, dtype);
    const double unit = dtype == kBFloat16 ? 8e-3 : dtype == kFloat16 ? 1e-3 : dtype == kFloat32 ? 1e-5 : 1e-12;
    const Tensor expected = expected_product(x, y);
    expect_close(matmul(x, y), expected, unit, unit);
    set_reference_kernels(true);
    const Tensor plain = matmul(x, y);
    set_reference_kernels(false);
    expect_close(plain, expected, unit, unit);
  }
}

const auto kSmall = ::testing::Values(
    Case{{3, 4}, {4, 5}}, Case{{1, 1}, {1, 1}}, Case{{4}, {4}}, Case{{4}, {4, 3}}, Case{{3, 4}, {4}},
    Case{{2, 3, 4}, {4}}, Case{{4}, {2, 4, 3}}, Case{{2, 3, 4}, {4, 5}}, Case{{3, 4}, {2, 4, 5}},
    Case{{2, 3, 4}, {2, 4, 5}}, Case{{2, 1, 3, 4}, {5, 4, 2}}, Case{{1, 3, 4}, {6, 4, 2}}, Case{{9, 3, 4}, {9, 4, 2}},
    Case{{0, 4}, {4, 3}}, Case{{3, 0}, {0, 2}}, Case{{0}, {0}}, Case{{0, 3, 4}, {4, 2}}, Case{{2, 3, 0}, {0, 2}});

INSTANTIATE_TEST_SUITE_P(Small, MatmulCases, kSmall);
INSTANTIATE_TEST_SUITE_P(Small, MatmulGradients, kSmall);
INSTANTIATE_TEST_SUITE_P(Large, MatmulCases, ::testing::Values(Case{{70, 65}, {65, 130}}, Case{{5, 3000}, {3000, 4}}));

TEST(Matmul, transposed_views_need_no_copy_to_be_right) {
  const Tensor x = make_input({40, 30}, 1), y = make_input({40, 20}, 2);
  const Tensor xt = x.as_strided({30, 40}, {1, 30}, 0);
  expect_close(matmul(xt, y), expected_product(copy_contiguous(xt), y), 1e-12, 1e-12);
  const Tensor yt = y.as_strided({20, 40}, {1, 20}, 0);
  expect_close(matmul(yt, x), expected_product(copy_contiguous(yt), x), 1e-12, 1e-12);
}

TEST(Matmul, float32_large_equals_float64) {
  for (const Case& c : {Case{{200, 300}, {300, 150}}, Case{{64, 9216}, {9216, 32}}, Case{{20, 2500, 3}, {20, 3, 7}}}) {
    const Tensor x = make_input(c.a, 1, kFloat32), y = make_input(c.b, 2, kFloat32);
    expect_close(matmul(x, y), matmul(cast_values(x, kFloat64), cast_values(y, kFloat64)), 1e-4, 1e-3);
  }
}

TEST(Matmul, thread_count_does_not_change_bits) {
  for (const Case& c : {Case{{256, 784}, {784, 512}}, Case{{64, 9216}, {9216, 128}}, Case{{16, 40, 40}, {16, 40, 40}}})
    check_threads({.name = "",
                   .inputs =
                       [=] {
                         return TensorList{make_leaf(c.a, 1), make_leaf(c.b, 2)};
                       },
                   .run = [](const TensorList& in) { return TensorList{matmul(in[0], in[1])}; }});
}

// Whatever instructions the processor has for them.
TEST(Matmul, bfloat16_has_the_bits_of_float32_rounded_once) {
  for (const Shape& batch : {Shape{}, Shape{3}, Shape{9}}) {
    Shape a_sizes = batch, b_sizes = batch;
    for (const std::int64_t size : {96, 80}) a_sizes.push_back(size);
    for (const std::int64_t size : {70, 80}) b_sizes.push_back(size);
    const Tensor a = make_input(a_sizes, 1, kFloat32).to(kBFloat16), b = make_input(b_sizes, 2, kFloat32).to(kBFloat16);
    const Tensor turned = b.transpose(-2, -1), wide = matmul(a.to(kFloat32), turned.to(kFloat32));
    EXPECT_EQ(matmul(a, turned).to(kFloat32).to_vector<float>(), wide.to(kBFloat16).to(kFloat32).to_vector<float>());
    EXPECT_EQ(matmul(b, a.transpose(-2, -1)).to(kFloat32).to_vector<float>(),
              wide.transpose(-2, -1).to(kBFloat16).to(kFloat32).to_vector<float>());
  }
}

TEST(Matmul, integers_wrap) {
  for (const DType dtype : {kInt64, kInt32, kUInt8}) {
    const Tensor a = arange(24, {.dtype = dtype}).view({2, 3, 4}), b = arange(8, {.dtype = dtype}).view({4, 2});
    const Tensor product = matmul(a, b);
    EXPECT_EQ(product.dtype(), dtype);
    const Tensor wide = expected_product(cast_values(a, kFloat64), cast_values(b, kFloat64));
    expect_close(product, cast_values(cast_values(wide, kInt64), dtype), 0, 0);
  }
}

TEST(Matmul, integers_of_every_shape_are_those_of_the_reference) {
  for (const DType dtype : {kInt64, kInt32, kUInt8})
    for (const Case& c : {Case{{7, 9}, {9, 1}}, Case{{3, 5}, {5, 261}}, Case{{1, 300}, {300, 7}}, Case{{3, 0}, {0, 2}},
                          Case{{2, 1, 3, 4}, {5, 4, 2}}, Case{{33}, {33}}, Case{{70, 65}, {65, 130}}}) {
      const auto numbers = [&](const Shape& sizes, std::uint32_t seed) {
        return make_input(sizes, seed, kInt64, -1000, 1000).to(dtype);
      };
      const Tensor a = numbers(c.a, 1), b = numbers(c.b, 2);
      set_reference_kernels(true);
      const Tensor expected = matmul(a, b);
      set_reference_kernels(false);
      EXPECT_TRUE(equal(matmul(a, b), expected));
      EXPECT_TRUE(equal(matmul(make_strided(a), make_strided(b)), expected));
    }
  const Tensor most = full({2, 2}, std::int64_t{1} << 62, {.dtype = kInt64});
  EXPECT_EQ(matmul(most, full({2, 2}, 3, {.dtype = kInt64})).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>(4, std::int64_t(std::uint64_t{6} << 62))));
}

TEST(Matmul, errors_name_the_sizes) {
  const auto message = [](const Tensor& a, const Tensor& b) { return error_of([&] { matmul(a, b); }); };
  EXPECT_NE(message(ones({2, 3}), ones({2, 3})).find("inner sizes differ: [2, 3] times [2, 3]"), std::string::npos);
  EXPECT_NE(message(ones({3}), ones({2})).find("inner sizes differ"), std::string::npos);
  EXPECT_NE(message(ones({2, 2, 3}), ones({3, 3, 3})).find("[matmul]"), std::string::npos);
  EXPECT_NE(message(ones({}), ones({2})).find("at least one dimension"), std::string::npos);
  EXPECT_NE(message(ones({2}), ones({2}, {.dtype = kFloat64})).find("float32 and float64"), std::string::npos);
  EXPECT_NE(message(ones({2}, {.dtype = kBool}), ones({2}, {.dtype = kBool})).find("bool"), std::string::npos);
  EXPECT_NE(message(ones({2}), ones({2}, {.device = {kCPU, 1}})).find("cpu:0 and cpu:1"), std::string::npos);
  EXPECT_NE(message(Tensor(), ones({2})).find("undefined"), std::string::npos);
}

TEST(AddedProducts, AFactorOfZeroLeavesZerosAndShapesCount) {
  const Tensor m = ones({2, 2}), v = ones({2}), b = ones({1, 2, 2});
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> functions = {
      {"addmm", [&](const Tensor& x) { return addmm(x, m, m, 0.0); }},
      {"baddbmm", [&](const Tensor& x) { return baddbmm(x, b, b, 0.0); }},
      {"addmv", [&](const Tensor& x) { return addmv(x, m, v, 0.0); }},
      {"addr", [&](const Tensor& x) { return addr(x, v, v, 0.0); }},
      {"addbmm", [&](const Tensor& x) { return addbmm(x, b, b, 0.0); }}};
  for (const auto& function : functions) {
    const char* const name = function.first;
    const auto& run = function.second;
    const Tensor x = make_leaf({2}, 1, kFloat32), out = run(x);
    EXPECT_EQ(grad({out.sum()}, {x})[0].to_vector<float>(), (std::vector<float>{0, 0})) << name;
    expect_close(out, run(zeros({2})), 0, 0);
    EXPECT_EQ(error_of([&] { run(ones({7})); }).find(std::string("[") + name), 0U) << name;
    EXPECT_EQ(run(zeros({2}, {.dtype = kFloat64})).dtype(), kFloat64) << name;
    const std::string larger = error_of([&] { run(ones({3, 1, 2, 2})); });
    EXPECT_NE(larger.find("expected an x that broadcasts to the product's shape"), std::string::npos) << larger;
  }
}

TEST(AddedProducts, AnAlphaOfZeroLeavesOutTheProduct) {
  const Tensor nan = full({2}, NAN), m = nan.expand({2, 2}), b = nan.expand({1, 2, 2}), x = make_input({2, 2});
  const Tensor twice = x * 2.0;
  expect_close(addmm(x, m, m, 2.0, 0.0), twice, 0, 0);
  expect_close(baddbmm(x, b, b, 2.0, 0.0), twice.view({1, 2, 2}), 0, 0);
  expect_close(addmv(x[0], m, nan, 2.0, 0.0), twice[0], 0, 0);
  expect_close(addr(x, nan, nan, 2.0, 0.0), twice, 0, 0);
  expect_close(addbmm(x, b, b, 2.0, 0.0), twice, 0, 0);
  expect_close(addmm(m, m, m, 0.0, 0.0), zeros({2, 2}), 0, 0);
}

}  // namespace
}  // namespace lockstep::testing
