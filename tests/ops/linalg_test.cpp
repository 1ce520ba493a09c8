#include "lockstep/autograd/ops/linalg/linalg.h"

#include <cmath>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/view/view.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

/// Well conditioned: a random matrix with a large diagonal, whose rows come in another order.
Tensor matrices(const Shape& sizes) {
  const NoGradGuard values_only;
  const std::int64_t n = sizes.back();
  const Tensor x = make_leaf(sizes).detach() + 3.0 * eye(n, n, {.dtype = kFloat64}).roll(1, 0);
  return x.clone().requires_grad_();
}
Tensor leaf(const Shape& sizes) {
  return make_leaf(sizes);
}

/// The determinant by expansion along the first row.
double expanded(const std::vector<double>& a, std::size_t n) {
  if (n == 0) return 1.0;
  double sum = 0.0;
  for (std::size_t c = 0; c < n; ++c) {
    std::vector<double> minor;
    for (std::size_t r = 1; r < n; ++r)
      for (std::size_t j = 0; j < n; ++j)
        if (j != c) minor.push_back(a[r * n + j]);
    sum += (c % 2 ? -1.0 : 1.0) * a[c] * expanded(minor, n - 1);
  }
  return sum;
}

void check_gradients(const std::function<Tensor(const TensorList&)>& run, const std::function<TensorList()>& inputs) {
  check_op({.name = "",
            .inputs = inputs,
            .run = [=](const TensorList& in) { return TensorList{run(in)}; },
            .slack = 30.0,
            .halves = false});
}

TEST(Linalg, SolveUndoesTheProduct) {
  for (const auto& [a_sizes, b_sizes] : {std::pair(Shape{3, 3}, Shape{3, 2}), std::pair(Shape{4, 4}, Shape{4}),
                                         std::pair(Shape{2, 3, 3}, Shape{3, 2}), std::pair(Shape{3, 3}, Shape{2, 3, 1}),
                                         std::pair(Shape{1, 1}, Shape{1, 1}), std::pair(Shape{0, 2, 2}, Shape{2, 2})}) {
    const Tensor a = matrices(a_sizes), b = leaf(b_sizes), x = linalg::solve(a, b);
    EXPECT_TRUE(allclose(matmul(a, x), b.expand(x.sizes()), 1e-12, 1e-12)) << a_sizes << b_sizes;
    check_gradients([](const TensorList& in) { return linalg::solve(in[0], in[1]); },
                    [a = a_sizes, b = b_sizes] {
                      return TensorList{matrices(a), leaf(b)};
                    });
  }
  EXPECT_TRUE(
      allclose(matmul(matrices({40, 40}), inverse(matrices({40, 40}))), eye(40, 40, {.dtype = kFloat64}), 0, 1e-12));
  check_gradients([](const TensorList& in) { return linalg::inv(in[0]); },
                  [] {
                    return TensorList{matrices({2, 3, 3})};
                  });
}

TEST(Linalg, DeterminantsAreThoseOfTheExpansion) {
  for (const std::int64_t n : {1, 2, 3, 5}) {
    const Tensor a = matrices({n, n});
    const double expected = expanded(a.detach().to_vector<double>(), static_cast<std::size_t>(n));
    const auto [sign, logabsdet] = slogdet(a);
    EXPECT_NEAR(det(a).item(), expected, 1e-11 * std::abs(expected));
    EXPECT_EQ(sign.item(), expected > 0 ? 1.0 : -1.0);
    EXPECT_NEAR(logabsdet.item(), std::log(std::abs(expected)), 1e-12);
  }
  check_gradients([](const TensorList& in) { return det(in[0]); }, [] { return TensorList{matrices({2, 3, 3})}; });
  check_gradients([](const TensorList& in) { return slogdet(in[0]).logabsdet; },
                  [] {
                    return TensorList{matrices({2, 3, 3})};
                  });
  EXPECT_EQ(det(ones({2, 2})).item(), 0.0);
  EXPECT_EQ(slogdet(ones({2, 2})).logabsdet.item(), -INFINITY);
  const Tensor turned = tensor<double>({2, 1, 0, 3, 1, 2, 3, 0, 1, 1, 1, 1}).view({3, 2, 2});
  const std::vector<double> logs = logdet(turned).to_vector<double>();
  EXPECT_NEAR(logs[0], std::log(6.0), 1e-15);
  EXPECT_TRUE(std::isnan(logs[1])) << "of a determinant below 0";
  EXPECT_EQ(logs[2], -INFINITY);
  check_gradients([](const TensorList& in) { return in[0].logdet(); },
                  [] {
                    return TensorList{tensor<double>({2, 1, 0, 3, 4, -1, 2, 3}).view({2, 2, 2}).requires_grad_()};
                  });
  EXPECT_NE(error_of([] { logdet(ones({2, 3})); }).find("[logdet]"), std::string::npos);
  EXPECT_EQ(det(zeros({0, 0})).item(), 1.0);
}

TEST(Linalg, DeterminantsAreRoundedOnce) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    EXPECT_EQ(det(eye(40, 40, {.dtype = dtype}) * 8.0).item(), 0x1p120);
    EXPECT_EQ(det(eye(3, 3, {.dtype = dtype}) * -100.0).item(), -1e6);
    const double large = dtype == kFloat32 ? 0x1p100 : 0x1p900, small = 1.0 / large;
    // Where products of some pivots are out of range, and that of all is not.
    EXPECT_EQ(det(stack({diag(tensor<double>({small, small, large, large})).to(dtype),
                         diag(tensor<double>({large, large, -small, small})).to(dtype)}))
                  .to_vector<double>(),
              (std::vector<double>{1.0, -1.0}));
  }
  EXPECT_EQ(det(eye(4, 4, {.dtype = kFloat64}) * 0x1p-300).item(), 0.0);
  EXPECT_EQ(det(eye(4, 4, {.dtype = kFloat64}) * 0x1p300).item(), INFINITY);
  EXPECT_EQ(det(eye(1100, 1100, {.dtype = kFloat64}) * 2.0).item(), INFINITY);
}

// A polynomial: its gradient, the cofactors, needs no inverse.
TEST(Linalg, DeterminantsOfSingularMatricesHaveGradients) {
  const auto gradient = [](const Tensor& a) {
    const Tensor leaf = a.detach().clone().requires_grad_();
    return grad({det(leaf).sum()}, {leaf})[0];
  };
  const auto of = [](std::initializer_list<double> values) { return tensor<double>(values).view({3, 3}); };
  const Tensor flat = of({2, 0, 0, 0, 3, 0, 0, 0, 0}), sums = of({1, 2, 3, 4, 5, 9, 7, 8, 15});
  const Tensor of_flat = of({0, 0, 0, 0, 0, 0, 0, 0, 6}), of_sums = of({3, 3, -3, -6, -6, 6, 3, 3, -3});
  EXPECT_TRUE(allclose(gradient(flat), of_flat, 0, 1e-13));
  EXPECT_TRUE(allclose(gradient(sums), of_sums, 0, 1e-12));
  EXPECT_TRUE(allclose(gradient(ones({3, 3}, kFloat64)), zeros({3, 3}, kFloat64), 0, 1e-13));
  EXPECT_TRUE(allclose(gradient(zeros({1, 1}, kFloat64)), ones({1, 1}, kFloat64), 0, 0));
  // Among others, which are computed as they are alone.
  const Tensor regular = matrices({3, 3}).detach(), both = gradient(stack({regular, flat, sums}));
  EXPECT_TRUE(equal(both.select(0, 0), gradient(regular)));
  EXPECT_TRUE(allclose(both.select(0, 1), of_flat, 0, 1e-13));
  EXPECT_TRUE(allclose(both.select(0, 2), of_sums, 0, 1e-12));
  const auto second = [](const std::vector<Tensor>& in) {
    const EnableGradGuard recording;
    return grad({(det(in[0]) * 1.5).sum()}, {in[0]}, {}, {.create_graph = true})[0];
  };
  gradcheck(second, {stack({regular, flat}).requires_grad_()});
  EXPECT_FALSE(std::isnan(gradient(stack({regular, zeros({3, 3}, kFloat64)})).sum().item()));
}

// Of regular matrices whose transposes end at a pivot that is rounded to 0: what has a gradient has the next ones.
TEST(Linalg, DeterminantsNearSingularMatricesHaveSecondDerivatives) {
  for (const auto& values : {std::vector{2.9, 3.1, 7.25, 7.75}, {1.8, 1.5, 6.84, 5.699999999999999}}) {
    const Tensor a = tensor<double>(values).view({2, 2}).requires_grad_();
    ASSERT_NE(det(a).item(), 0.0);
    ASSERT_EQ(det(a.detach().t().contiguous()).item(), 0.0);
    const Tensor of_det = grad({grad({det(a)}, {a}, {}, {.create_graph = true})[0].sum()}, {a})[0];
    EXPECT_TRUE(of_det.isfinite().all().item<bool>());
    const Tensor of_log = grad({grad({slogdet(a).logabsdet}, {a}, {}, {.create_graph = true})[0].sum()}, {a})[0];
    EXPECT_TRUE(of_log.isfinite().all().item<bool>());
  }
  const Tensor flat = ones({2, 2}, kFloat64).requires_grad_();
  EXPECT_EQ(error_of([&] { slogdet(flat).logabsdet.backward(); }),
            "[linalg.slogdet] matrix 0 is singular: it has no inverse");
}

TEST(Linalg, CholeskyIsARoot) {
  const auto positive = [](const Tensor& x) { return matmul(x, x.transpose(-2, -1)); };
  for (const Shape& sizes : {Shape{1, 1}, Shape{3, 3}, Shape{2, 4, 4}}) {
    const Tensor a = positive(matrices(sizes)), l = linalg::cholesky(a);
    EXPECT_TRUE(allclose(positive(l), a, 1e-12, 1e-12));
    EXPECT_TRUE(equal(l, l.tril()));
    check_gradients([=](const TensorList& in) { return linalg::cholesky(positive(in[0])); },
                    [=] { return TensorList{matrices(sizes)}; });
  }
}

TEST(Linalg, ANormThatNoElementsHaveIsAnErrorThatNamesIt) {
  const std::string message =
      "[vector_norm] shape [0] has no elements along the dimensions of the norm, and none is the largest of none; "
      "expected at least one, or an order that is finite";
  EXPECT_EQ(error_of([] { vector_norm(zeros({0}), INFINITY); }), message);
  EXPECT_EQ(error_of([] { vector_norm(zeros({0}, kBFloat16), INFINITY); }), message);
  EXPECT_NE(error_of([] {
              vector_norm(zeros({3, 0}), -INFINITY, {1});
            }).find("the smallest of none"),
            std::string::npos);
  EXPECT_EQ(vector_norm(zeros({3, 0}), INFINITY, {0}).sizes(), Shape{0});
  EXPECT_EQ(vector_norm(zeros({0}), 3.0).item(), 0.0);
}

TEST(Linalg, TrianglesAreSolvedWithoutTheRest) {
  const Tensor a = matrices({2, 3, 3}) + 3.0 * eye(3, 3, {.dtype = kFloat64}), b = make_input({2, 3, 3}, 5);
  for (const bool upper : {false, true})
    for (const bool unit : {false, true}) {
      Tensor triangle = upper ? a.triu(unit ? 1 : 0) : a.tril(unit ? -1 : 0);
      if (unit) triangle = triangle + eye(3, 3, {.dtype = kFloat64});
      const Tensor left = linalg::solve_triangular(a, b, upper, true, unit);
      const Tensor right = linalg::solve_triangular(a, b, upper, false, unit);
      EXPECT_TRUE(allclose(matmul(triangle, left), b, 1e-12, 1e-12));
      EXPECT_TRUE(allclose(matmul(right, triangle), b, 1e-12, 1e-12));
      for (const bool on_left : {true, false})
        check_gradients(
            [=](const TensorList& in) { return linalg::solve_triangular(in[0], in[1], upper, on_left, unit); },
            [=] {
              return TensorList{a.clone(), b.clone()};
            });
    }
  const Tensor l = a.tril();
  EXPECT_TRUE(allclose(matmul(matmul(l, l.transpose(1, 2)), cholesky_solve(b, l)), b, 1e-12, 1e-12));
  const Tensor u = a.triu();
  EXPECT_TRUE(allclose(matmul(matmul(u.transpose(1, 2), u), cholesky_solve(b, u, true)), b, 1e-12, 1e-12));
}

// Note [Blocks of matrices]: sizes around those of blocks.
TEST(Linalg, LargerMatrices) {
  for (const Shape& sizes : {Shape{2, 31, 31}, Shape{32, 32}, Shape{33, 33}, Shape{2, 65, 65}, Shape{1, 130, 130}}) {
    SCOPED_TRACE(to_string(sizes));
    const std::int64_t n = sizes.back();
    Shape b_sizes = sizes;
    b_sizes[b_sizes.dim() - 1] = 7;
    const Tensor x = matrices(sizes).detach() + 4.0 * eye(n, n, {.dtype = kFloat64}).roll(1, 0),
                 a = matmul(x, x.transpose(-2, -1)), b = make_input(b_sizes, 5), l = linalg::cholesky(a),
                 u = l.transpose(-2, -1);
    EXPECT_TRUE(allclose(matmul(l, u), a, 1e-11, 1e-11));
    EXPECT_TRUE(equal(l, l.tril()));
    EXPECT_TRUE(allclose(matmul(l, linalg::solve_triangular(l, b, false)), b, 1e-11, 1e-11));
    EXPECT_TRUE(allclose(matmul(u, linalg::solve_triangular(u, b, true)), b, 1e-11, 1e-11));
    EXPECT_TRUE(allclose(matmul(a, cholesky_solve(b, l)), b, 1e-9, 1e-9));
    EXPECT_TRUE(allclose(matmul(x, linalg::solve(x, b)), b, 1e-10, 1e-10));
    const auto [sign, logabsdet] = slogdet(x);
    EXPECT_TRUE(allclose(logabsdet, log(diagonal(l, 0, -2, -1)).sum({-1}), 1e-10, 1e-10));
    const Tensor inverse_sign = slogdet(linalg::inv(x.narrow(-1, 0, n).roll(1, -1))).sign;  // by another permutation
    EXPECT_TRUE(equal(inverse_sign, n % 2 == 0 ? -sign : sign));
    const Tensor narrow = linalg::solve(x.to(kFloat32), b.to(kFloat32));
    EXPECT_TRUE(allclose(narrow.to(kFloat64), linalg::solve(x, b), 1e-4, 1e-5));
  }
}

TEST(Linalg, ThreadsDoNotChangeBits) {
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{matrices({200, 200}), make_leaf({200, 70}, 2)};
                     },
                 .run =
                     [](const TensorList& in) {
                       const Tensor square =
                           matmul(in[0], in[0].transpose(0, 1)) + 300.0 * eye(200, 200, in[0].options());
                       return TensorList{linalg::solve(in[0], in[1]), linalg::cholesky(square)};
                     },
                 .slack = 100.0});
}

TEST(LinalgErrors, NameTheProblem) {
  const auto error = [](auto&& call) { return error_of([&] { call(); }); };
  EXPECT_NE(error([] {
              linalg::solve(ones({2, 3, 3}), ones({3, 1}));
            }).find("[linalg.solve] matrix 0 is singular"),
            std::string::npos);
  EXPECT_NE(error([] {
              linalg::solve(zeros({1, 2, 2}), ones({1, 2, 1}));
            }).find("matrix 0 is singular"),
            std::string::npos);
  EXPECT_NE(error([] { linalg::inv(ones({2, 3})); }).find("expected square matrices, found [2, 3]"), std::string::npos);
  EXPECT_NE(error([] { linalg::cholesky(-eye(2)); }).find("matrix 0 is not positive definite"), std::string::npos);
  const Tensor late = make_input({2, 70, 70}, 3), negative = 2.0 * eye(70, 70);
  late.select(0, 1).select(1, 60).zero_();  // found in a later block
  EXPECT_NE(error([&] { linalg::inv(late); }).find("matrix 1 is singular"), std::string::npos);
  EXPECT_NE(error([&] { linalg::solve(late.triu(), late); }).find("matrix 1 is singular"), std::string::npos);
  negative.index_put_({60, 60}, -1.0);
  EXPECT_NE(error([&] { linalg::cholesky(negative); }).find("not positive definite"), std::string::npos);
  EXPECT_NE(error([] { linalg::solve(eye(2), ones({3, 1})); }).find("a right side of 2 rows"), std::string::npos);
  EXPECT_NE(error([] { linalg::inv(eye(2).to(kFloat16)); }).find("float32 or float64"), std::string::npos);
  const Tensor singular = ones({2, 2}).requires_grad_();
  EXPECT_NE(error([&] { slogdet(singular).logabsdet.backward(); }).find("singular"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
