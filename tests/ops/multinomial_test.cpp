#include "lockstep/autograd/ops/multinomial/multinomial.h"

#include <algorithm>
#include <array>
#include <set>

#include "lockstep/autograd/ops/multinomial/multinomial_kernels.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TEST(Multinomial, DrawsInProportion) {
  const std::vector<double> p{0.1, 0.0, 0.6, 0.3};
  for (const bool replacement : {true, false}) {
    manual_seed(1);
    constexpr int kDraws = 20000;
    const Tensor drawn = replacement ? multinomial(tensor<double>(p), kDraws, true)
                                     : multinomial(tensor<double>(p).view({1, 4}).expand({kDraws, 4}), 1);
    std::vector<double> counts(4, 0);
    for (const std::int64_t c : drawn.to_vector<std::int64_t>()) counts.at(static_cast<std::size_t>(c)) += 1.0 / kDraws;
    for (std::size_t c = 0; c < 4; ++c) EXPECT_NEAR(counts[c], p[c], 0.015) << "class " << c;
    EXPECT_EQ(counts[1], 0.0);
  }
}

TEST(Multinomial, WithoutReplacementNothingComesTwice) {
  manual_seed(2);
  const Tensor drawn = multinomial(make_input({50, 8}, 1, kFloat32, 0.1, 1.0), 8);
  EXPECT_EQ(drawn.sizes(), (Shape{50, 8}));
  for (int r = 0; r < 50; ++r) {
    const auto row = drawn[r].to_vector<std::int64_t>();
    EXPECT_EQ(std::set<std::int64_t>(row.begin(), row.end()).size(), 8u);
  }
}

TEST(Multinomial, DependsOnTheSeedAlone) {
  const Tensor p = make_input({40, 3000}, 1, kFloat32, 0.0, 1.0);
  for (const bool replacement : {true, false}) {
    manual_seed(3);
    set_num_threads(1);
    const auto one = multinomial(p, 5, replacement).to_vector<std::int64_t>();
    const auto next = multinomial(p, 5, replacement).to_vector<std::int64_t>();
    manual_seed(3);
    set_num_threads(2);
    EXPECT_EQ(multinomial(p, 5, replacement).to_vector<std::int64_t>(), one);
    EXPECT_NE(one, next);
  }
}

TEST(Multinomial, DrawsAreThoseOfTheRunningSum) {
  for (const auto& [rows, classes, count] : {std::array{3, 17, 400}, std::array{1, 1, 5}, std::array{40, 301, 7}}) {
    Tensor p = make_input({rows, classes}, 1, kFloat64, -0.5, 1.0);
    for (std::int64_t i = 0; i < p.numel(); ++i) p.data<double>()[i] = std::max(p.data<double>()[i], 0.0);
    for (std::int64_t r = 0; r < rows; ++r) p.data<double>()[r * classes + classes / 2] = 1e-20 + 0.1 * r;
    const philox::KeySource key{.key = {5, 9}};
    const Tensor drawn = empty({rows, count}, {.dtype = kInt64});
    detail::multinomial_cpu(p, drawn, key);
    for (std::int64_t i = 0; i < drawn.numel(); ++i)
      ASSERT_EQ(drawn.data<std::int64_t>()[i],
                detail::draw_class(p.data<double>() + i / count * classes, classes,
                                   detail::uniform_at(key.get(), static_cast<std::uint64_t>(i))));
  }
}

TEST(MultinomialErrors, NameTheProblem) {
  const auto message = [](const Tensor& p, std::int64_t count = 1, bool replacement = false) {
    return error_of([&] { multinomial(p, count, replacement); });
  };
  const std::pair<std::string, const char*> cases[] = {
      {message(ones({2}, {.dtype = kInt64})), "floating-point probabilities"},
      {message(ones({2, 2, 2})), "[classes] or [rows, classes]"},
      {message(ones({2}), 3), "between 1 and the 2 classes, found 3"},
      {message(tensor<float>({1, -1})), "found -1 in row 0, class 1"},
      {message(zeros({2, 2}), 1, true), "row 0 has 0 classes of more than 0"},
      {message(tensor<float>({1, 0}), 2), "row 0 has 1 classes of more than 0, and 2 are to be drawn"},
  };
  for (const auto& [found, part] : cases) EXPECT_NE(found.find(part), std::string::npos) << found;
}

}  // namespace
}  // namespace lockstep::testing
