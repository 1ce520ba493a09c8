// Factors of matrices: qr(), eigh(), svd() and what is computed from them.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

const Shape kSizes[] = {{1, 1},   {3, 3},   {5, 2},    {2, 5},    {2, 4, 3}, {3, 1, 4},
                        {17, 40}, {40, 17}, {0, 3, 2}, {2, 0, 3}, {3, 0}};

Tensor mt(const Tensor& x) {
  return x.transpose(-2, -1);
}
void expect_orthonormal(const Tensor& q, double bound) {
  const Tensor product = matmul(mt(q), q);
  expect_close(product, eye(q.size(-1), q.size(-1), options_of(q)).expand(product.sizes()), bound, bound);
}
double bound_of(DType dtype) {
  return dtype == kFloat64 ? 1e-12 : 5e-6;
}
Tensor matrix(const Shape& sizes, DType dtype, std::uint32_t seed = 1) {
  return make_input(sizes, seed, kFloat64, -2, 2).to(dtype);
}
/// Symmetric, with eigenvalues far apart.
Tensor symmetric(const Tensor& x) {
  return x + mt(x) + tensor<double>({0, 5, 12, 21, 33}).slice(0, 0, x.size(-1)).to(x.dtype()).diag();
}

/// The gradient of a function at its first input, as a function.
Tensor gradient_of(const std::function<Tensor(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& in) {
  const EnableGradGuard recording;
  return grad({function(in)}, {in[0]}, {}, {.create_graph = true})[0];
}

TEST(Qr, FactorsMultiplyToTheMatrix) {
  for (const DType dtype : {kFloat64, kFloat32})
    for (const Shape& sizes : kSizes)
      for (const char* mode : {"reduced", "complete"}) {
        const Tensor a = matrix(sizes, dtype);
        const auto [q, r] = linalg::qr(a, mode);
        const double bound = bound_of(dtype);
        EXPECT_EQ(q.size(-1), std::string(mode) == "complete" ? a.size(-2) : std::min(a.size(-1), a.size(-2)));
        expect_close(matmul(q, r), a, bound, bound);
        expect_orthonormal(q, bound);
        EXPECT_TRUE(equal(r, triu(r)));
        EXPECT_TRUE(equal(linalg::qr(a, "r").r.slice(-2, 0, std::min(a.size(-1), a.size(-2))),
                          r.slice(-2, 0, std::min(a.size(-1), a.size(-2)))));
      }
}

// As LAPACK: a first element above 0 gives an r below 0, a column that needs no reflection keeps its sign.
TEST(Qr, SignsAreThoseOfLapack) {
  const auto [q, r] = linalg::qr(tensor<double>({3, 1, 4, -2}).view({2, 2}));
  expect_close(r, tensor<double>({-5, 1, 0, -2}).view({2, 2}), 1e-14, 1e-14);
  EXPECT_EQ(linalg::qr(tensor<double>({2, 1, 0, -3}).view({2, 2})).r.to_vector<double>(),
            (std::vector<double>{2, 1, 0, -3}));
  EXPECT_EQ(linalg::qr(zeros({2, 2})).q.to_vector<float>(), (std::vector<float>{1, 0, 0, 1}));
}

TEST(Qr, Gradients) {
  for (const Shape& sizes : {Shape{3, 3}, Shape{4, 2}, Shape{2, 4}, Shape{2, 3, 2}}) {
    const auto both = [](const std::vector<Tensor>& in) {
      const auto [q, r] = linalg::qr(in[0]);
      return (q * make_input(q.sizes(), 5)).sum() + (r * make_input(r.sizes(), 6)).sum();
    };
    const auto of_q = [](const std::vector<Tensor>& in) {
      const Tensor q = linalg::qr(in[0]).q;
      return (q * make_input(q.sizes(), 5)).sum();
    };
    const auto of_r = [](const std::vector<Tensor>& in) { return linalg::qr(in[0], "r").r.square().sum(); };
    const std::vector<Tensor> in{matrix(sizes, kFloat64).clone().requires_grad_()};
    gradcheck(both, in);
    gradcheck(of_q, in);
    gradcheck(of_r, in);
    gradcheck([&](const std::vector<Tensor>& x) { return gradient_of(both, x); }, in);
  }
  const Tensor tall = matrix({3, 2}, kFloat64).clone().requires_grad_();
  EXPECT_NE(error_of([&] { linalg::qr(tall, "complete").q.sum().backward(); }).find("use \"reduced\""),
            std::string::npos);
}

TEST(Eigh, VectorsAreScaledByTheMatrix) {
  for (const DType dtype : {kFloat64, kFloat32})
    for (const Shape& sizes :
         {Shape{1, 1}, Shape{2, 2}, Shape{3, 5, 5}, Shape{60, 60}, Shape{2, 0, 0}, Shape{0, 3, 3}}) {
      const Tensor x = matrix(sizes, dtype), a = x + mt(x);
      const auto [values, vectors] = linalg::eigh(a);
      const double bound = 20 * bound_of(dtype);
      expect_close(matmul(a, vectors), vectors * values.unsqueeze(-2), bound, bound);
      expect_orthonormal(vectors, bound);
      EXPECT_TRUE((values.slice(-1, 1, values.size(-1)) >= values.slice(-1, 0, -1)).all().item<bool>());
      // The other triangle is not looked at.
      EXPECT_TRUE(equal(linalg::eigvalsh(tril(a)), values));
      EXPECT_TRUE(equal(linalg::eigvalsh(triu(a), "U"), values));
    }
}

TEST(Eigh, WhatIsEasilyLost) {
  // Equal values, zeros, blocks that come apart, and numbers whose squares overflow or vanish.
  EXPECT_EQ(linalg::eigvalsh(eye(4, 4)).to_vector<float>(), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(linalg::eigvalsh(zeros({3, 3})).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  for (const double scale : {1e-300, 1e300}) {
    const Tensor a = tensor<double>({2, 1, 0, 1, 2, 0, 0, 0, 1}).view({3, 3}) * scale;
    expect_close(linalg::eigvalsh(a) / scale, tensor<double>({1, 1, 3}), 1e-14, 1e-14);
  }
  const Tensor graded = tensor<double>({1e8, 1, 1, 1e-8}).view({2, 2});  // determinant 0
  EXPECT_LT(std::abs(linalg::eigvalsh(graded)[0].item<double>()), 1e-7);
  EXPECT_NE(error_of([] {
              linalg::eigh(full({2, 2}, std::numeric_limits<double>::quiet_NaN()));
            }).find("not finite"),
            std::string::npos);
}

TEST(Eigh, Gradients) {
  const auto function = [](const std::vector<Tensor>& in) {
    const auto [values, vectors] = linalg::eigh(symmetric(in[0]));
    return (values.square() * make_input(values.sizes(), 3)).sum() +
           (vectors.square() * make_input(vectors.sizes(), 4)).sum();  // whatever the signs
  };
  for (const Shape& sizes : {Shape{3, 3}, Shape{2, 4, 4}}) {
    const std::vector<Tensor> in{matrix(sizes, kFloat64).clone().requires_grad_()};
    gradcheck(function, in);
    gradcheck([&](const std::vector<Tensor>& x) { return gradient_of(function, x); }, in);
  }
  // As PyTorch's: of what is constant, the gradient is 0 also for changes that are not symmetric.
  const Tensor a = symmetric(matrix({3, 3}, kFloat64)).detach().requires_grad_();
  (linalg::eigh(a).eigenvectors.square() * arange(9, {.dtype = kFloat64}).view({3, 3})).sum().backward();
  EXPECT_LT(a.grad().abs().max().item<double>(), 1e-14);
  const Tensor same = eye(3, 3).requires_grad_();
  linalg::eigvalsh(same).sum().backward();
  EXPECT_TRUE(allclose(same.grad(), eye(3, 3)));
}

TEST(Svd, FactorsMultiplyToTheMatrix) {
  for (const DType dtype : {kFloat64, kFloat32})
    for (const Shape& sizes : kSizes)
      for (const bool full : {false, true}) {
        const Tensor a = matrix(sizes, dtype);
        const auto [u, s, vh] = linalg::svd(a, full);
        const std::int64_t k = s.size(-1);
        const double bound = 5 * bound_of(dtype);
        EXPECT_EQ(u.size(-1), full ? a.size(-2) : k);
        EXPECT_EQ(vh.size(-2), full ? a.size(-1) : k);
        expect_close(matmul(u.slice(-1, 0, k) * s.unsqueeze(-2), vh.slice(-2, 0, k)), a, bound, bound);
        expect_orthonormal(u, bound);
        expect_orthonormal(mt(vh), bound);
        EXPECT_TRUE((s.slice(-1, 1, k) <= s.slice(-1, 0, -1)).all().item<bool>());
        EXPECT_TRUE(equal(linalg::svdvals(a), s));
      }
}

TEST(Svd, OfLowRankHasOrthonormalVectors) {
  const Tensor thin = matrix({6, 2}, kFloat64), low = matmul(thin, mt(matrix({5, 2}, kFloat64, 2)));
  for (const Tensor& a : {low, zeros({4, 3}, {.dtype = kFloat64}), cat({thin, thin}, 1), low * 1e-300, low * 1e300}) {
    const auto [u, s, vh] = linalg::svd(a, false);
    expect_orthonormal(u, 1e-12);
    expect_orthonormal(mt(vh), 1e-12);
    EXPECT_LE(s.select(-1, -1).item<double>(), 1e-15 * s.select(-1, 0).item<double>());
    EXPECT_EQ(linalg::matrix_rank(a).item<std::int64_t>(), a.abs().max().item<double>() > 0 ? 2 : 0);
  }
  EXPECT_NE(error_of([] {
              linalg::svd(full({2, 2}, std::numeric_limits<double>::infinity()));
            }).find("not finite"),
            std::string::npos);
}

// Rotations make equal columns shorter and shorter, until their squares vanish.
TEST(Svd, OfEqualColumnsHasOrthonormalVectors) {
  for (std::int64_t n = 30; n <= 100; n += 10) {
    const auto [u, s, vh] = linalg::svd(ones({n, n}, {.dtype = kFloat64}), false);
    expect_orthonormal(u, 1e-12);
    expect_orthonormal(mt(vh), 1e-12);
    EXPECT_NEAR(s.select(0, 0).item<double>(), static_cast<double>(n), 1e-12);
    EXPECT_LE(s.select(0, 1).item<double>(), 1e-13);
  }
}

// The vectors that belong to no column are found together, not one by one.
TEST(Svd, OfLowRank) {
  constexpr std::int64_t n = 120;
  const Tensor square = matrix({n, n}, kFloat64), none = zeros({n, n}, {.dtype = kFloat64});
  for (const std::int64_t rank : {std::int64_t{0}, std::int64_t{2}, n / 2}) {
    const Tensor a = cat({square.slice(1, 0, rank), none.slice(1, rank, n)}, 1);
    const auto [u, s, vh] = linalg::svd(a, false);
    expect_orthonormal(u, 1e-12);
    expect_orthonormal(mt(vh), 1e-12);
    expect_close(matmul(u * s.unsqueeze(-2), vh), a, 1e-12, 1e-12);
  }
}

TEST(Svd, Gradients) {
  const auto function = [](const std::vector<Tensor>& in) {
    const auto [u, s, vh] = linalg::svd(in[0], false);
    return (u.square() * make_input(u.sizes(), 3)).sum() + (s.square() * make_input(s.sizes(), 4)).sum() +
           (vh.square() * make_input(vh.sizes(), 5)).sum();
  };
  for (const Shape& sizes : {Shape{3, 3}, Shape{4, 2}, Shape{2, 4}, Shape{2, 3, 2}}) {
    const std::vector<Tensor> in{matrix(sizes, kFloat64).clone().requires_grad_()};
    gradcheck(function, in);
    gradcheck([](const std::vector<Tensor>& x) { return linalg::svdvals(x[0]); }, in);
    gradcheck([&](const std::vector<Tensor>& x) { return gradient_of(function, x); }, in);
  }
  // Of matrices whose squares vanish, or overflow: the vectors are those of any multiple.
  const auto slope = [](const Tensor& a) {
    const Tensor leaf = a.detach().clone().requires_grad_();
    const auto [u, s, vh] = linalg::svd(leaf, false);
    return grad({(u * vh).sum()}, {leaf})[0];
  };
  const Tensor a = matrix({3, 3}, kFloat64).detach(), expected = slope(a);
  for (const double factor : {0x1p-532, 0x1p532}) expect_close(slope(a * factor) * factor, expected, 1e-12, 1e-12);
}

TEST(MatrixNorm, EqualSingularValuesShareTheSlope) {
  for (const double order : {2.0, -2.0}) {
    const Tensor same = eye(3, 3).requires_grad_();
    linalg::matrix_norm(same, order).backward();
    EXPECT_TRUE(allclose(same.grad(), eye(3, 3) / 3.0)) << order;
  }
}

TEST(Pinv, IsThePseudoinverse) {
  for (const Shape& sizes : {Shape{3, 3}, Shape{5, 2}, Shape{2, 5}, Shape{2, 4, 3}}) {
    const Tensor a = matrix(sizes, kFloat64), p = linalg::pinv(a);
    expect_close(matmul(matmul(a, p), a), a, 1e-11, 1e-11);
    expect_close(matmul(matmul(p, a), p), p, 1e-11, 1e-11);
    expect_close(matmul(a, p), mt(matmul(a, p)), 1e-11, 1e-11);
    expect_close(matmul(p, a), mt(matmul(p, a)), 1e-11, 1e-11);
    const std::vector<Tensor> in{a.clone().requires_grad_(),
                                 matrix({sizes[sizes.dim() - 2], 2}, kFloat64, 3).requires_grad_()};
    const auto solution = [](const std::vector<Tensor>& x) { return linalg::lstsq(x[0], x[1]); };
    gradcheck(solution, in);
    gradcheck(
        [&](const std::vector<Tensor>& x) {
          return gradient_of([&](const std::vector<Tensor>& y) { return solution(y).square().sum(); }, x);
        },
        in);
  }
  expect_close(linalg::lstsq(tensor<double>({1, 0, 1, 1, 1, 2}).view({3, 2}), tensor<double>({1, 3, 5})),
               tensor<double>({1, 2}), 1e-12, 1e-12);
}

TEST(MatrixNorm, OfSingularValues) {
  const Tensor a = tensor<double>({3, 0, 0, 0, -4, 0}).view({2, 3});
  EXPECT_NEAR(linalg::matrix_norm(a, 2.0).item<double>(), 4.0, 1e-14);
  EXPECT_NEAR(linalg::matrix_norm(a, -2.0).item<double>(), 3.0, 1e-14);
  EXPECT_NEAR(linalg::matrix_norm(a, "nuc").item<double>(), 7.0, 1e-14);
  EXPECT_NEAR(linalg::cond(a).item<double>(), 4.0 / 3.0, 1e-14);
  EXPECT_EQ(linalg::matrix_norm(matrix({2, 3, 4}, kFloat64), 2.0, {0, 2}, true).sizes(), (Shape{1, 3, 1}));
  EXPECT_EQ(linalg::matrix_norm(matrix({2, 3, 4}, kFloat64), "nuc", {2, 0}).sizes(), (Shape{3}));
}

TEST(MatrixNorm, OfNoElementsIsZero) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Shape& sizes : {Shape{0, 0}, Shape{0, 3}, Shape{3, 0}, Shape{2, 0, 3}, Shape{0, 3, 3}}) {
    const Tensor a = zeros(sizes), expected = zeros(sizes.dim() == 2 ? Shape{} : Shape{sizes[0]});
    for (const double order : {2.0, 1.0, infinity}) EXPECT_TRUE(equal(linalg::matrix_norm(a, order), expected));
    for (const char* order : {"nuc", "fro"}) EXPECT_TRUE(equal(linalg::matrix_norm(a, order), expected));
    EXPECT_TRUE(equal(linalg::cond(a), expected));
    EXPECT_EQ(linalg::matrix_norm(a, 2.0, {-2, -1}, true).dim(), sizes.dim());
  }
  EXPECT_EQ(error_of([] {
              linalg::matrix_norm(zeros({0, 3}), -2.0);
            }),
            "[matrix_norm] [0, 3] has no matrix with a norm of order -2: nothing is the smallest");
  EXPECT_NE(error_of([] { linalg::matrix_norm(zeros({3, 0}), -1.0); }).find("[matrix_norm]"), std::string::npos);
}

TEST(Decompositions, ErrorsNameWhatWasCalled) {
  const Tensor bad = full({2, 2}, std::numeric_limits<double>::infinity(), kFloat64), half = ones({2, 2}, kFloat16);
  const Tensor singular = ones({2, 2}, kFloat64);
  const auto begins = [](const std::function<void()>& call, const std::string& with) {
    const std::string error = error_of(call);
    EXPECT_EQ(error.substr(0, with.size()), with) << error;
  };
  for (const Tensor& a : {bad, half}) {
    begins([&] { linalg::svd(a); }, "[linalg.svd] ");
    begins([&] { linalg::svdvals(a); }, "[linalg.svdvals] ");
    begins([&] { linalg::pinv(a); }, "[linalg.pinv] ");
    begins([&] { linalg::lstsq(a, a); }, "[linalg.lstsq] ");
    begins([&] { linalg::cond(a); }, "[linalg.cond] ");
    begins([&] { linalg::matrix_rank(a); }, "[linalg.matrix_rank] ");
    begins([&] { linalg::matrix_norm(a, 2.0); }, "[matrix_norm] ");
    begins([&] { linalg::matrix_norm(a, "nuc"); }, "[matrix_norm] ");
    begins([&] { linalg::eigh(a); }, "[linalg.eigh] ");
    begins([&] { linalg::eigvalsh(a); }, "[linalg.eigvalsh] ");
  }
  begins([&] { linalg::det(half); }, "[linalg.det] ");
  begins([&] { linalg::inv(singular); }, "[linalg.inv] matrix 0 is singular");
  begins([&] { linalg::solve(singular, singular); }, "[linalg.solve] matrix 0 is singular");
  begins([&] { linalg::solve_triangular(zeros_like(singular), singular, true); }, "[linalg.solve_triangular] matrix 0");
  begins([&] { cholesky_solve(singular, zeros_like(singular)); }, "[cholesky_solve] matrix 0");
}

TEST(Decompositions, BitsDoNotDependOnThreads) {
  for (const Shape& sizes : {Shape{40, 6, 6}, Shape{50, 20}})
    check_threads({.name = "",
                   .inputs = [sizes] { return TensorList{make_leaf(sizes)}; },
                   .run =
                       [](const TensorList& in) {
                         const auto [q, r] = linalg::qr(in[0]);
                         const auto [u, s, vh] = linalg::svd(in[0], false);
                         return TensorList{q, r, s, linalg::eigvalsh(matmul(mt(in[0]), in[0]))};
                       }});
}

}  // namespace
}  // namespace lockstep::testing
