// Batches of products of a few elements against the products one by one, to the bit.

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

/// One by one: by gemm().
Tensor one_by_one(const Tensor& a, const Tensor& b) {
  std::vector<Tensor> products;
  for (std::int64_t i = 0; i < a.size(0); ++i) products.push_back(matmul(a[i], b[i]));
  return stack(products);
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
  EXPECT_TRUE(same_bits(matmul(a, b), one_by_one(a, b))) << to_string(a.sizes()) << " by " << to_string(b.sizes());
}

TEST(MatmulSmall, HasTheBitsOfProductsOneByOne) {
  const NoGradGuard no_grad;
  for (const DType dtype : {kFloat32, kFloat64})
    for (std::int64_t m = 1; m <= 5; ++m)
      for (std::int64_t n = 1; n <= 5; ++n)
        for (std::int64_t k = 1; k <= 5; ++k) {
          const Tensor a = randn({19, m, k}, {.dtype = dtype}), b = randn({19, k, n}, {.dtype = dtype});
          expect_same_bits(a, b);
          expect_same_bits(randn({19, k, m}, {.dtype = dtype}).transpose(-2, -1),
                           randn({19, n, k}, {.dtype = dtype}).transpose(-2, -1));
        }
}

TEST(MatmulSmall, RowsTimesColumnsOfAnyLength) {
  const NoGradGuard no_grad;
  for (const DType dtype : {kFloat32, kFloat64})
    for (const std::int64_t k : {1, 7, 16, 511, 512, 513, 1200})
      expect_same_bits(randn({21, 1, k}, {.dtype = dtype}), randn({21, k, 1}, {.dtype = dtype}));
}

TEST(MatmulSmall, FewRowsOrColumnsBesideMany) {
  const NoGradGuard no_grad;
  for (const std::int64_t many : {6, 16, 33, 64, 65})
    for (std::int64_t few = 1; few <= 4; ++few)
      for (std::int64_t k = 1; k <= 4; ++k) {
        expect_same_bits(randn({9, few, k}), randn({9, k, many}));
        expect_same_bits(randn({9, many, k}), randn({9, many, k}).slice(1, 0, few).transpose(-2, -1));
        expect_same_bits(randn({9, few, k}), randn({9, many, k}).transpose(-2, -1));
      }
}

TEST(MatmulSmall, BroadcastAndGradients) {
  const Tensor a = make_leaf({5, 9, 1, 3}), b = make_leaf({9, 3, 3}, 2), c = make_leaf({5, 9, 3, 1}, 3);
  const Tensor direct = sum(a.transpose(-2, -1) * matmul(b, c), {-2}, true);
  const Tensor product = matmul(matmul(a, b), c);
  expect_close(product, direct, 1e-12, 1e-12);
  product.sum().backward();
  const Tensor grad_a = a.grad(), grad_b = b.grad(), grad_c = c.grad();
  for (const Tensor& t : {a, b, c}) t.set_grad({});
  direct.sum().backward();
  expect_close(a.grad(), grad_a, 1e-12, 1e-12);
  expect_close(b.grad(), grad_b, 1e-12, 1e-12);
  expect_close(c.grad(), grad_c, 1e-12, 1e-12);
}

TEST(MatmulSmall, InfinitiesAndSignsOfZeros) {
  const NoGradGuard no_grad;
  const Tensor a = full({8, 2, 2}, -0.0), b = full({8, 2, 2}, 1.0);
  for (const float x : matmul(a, b).to_vector<float>()) EXPECT_FALSE(std::signbit(x));  // sums begin with 0
  const Tensor c = full({8, 1, 2}, INFINITY);
  EXPECT_TRUE(isnan(matmul(c, zeros({8, 2, 1}))).all().item<bool>());
}

}  // namespace
}  // namespace lockstep
