#include "lockstep/autograd/ops/dropout/dropout.h"

#include <functional>
#include <limits>

#include "lockstep/core/cpu/philox_words.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

/// The key that the next dropout of this thread will draw, after a fresh manual_seed(seed).
philox::Key first_key(std::uint64_t seed) {
  return random_key(seed, RandomStream::dropout, 0, 0, 0);
}

/// Which of n decisions keep, by the definition.
std::vector<bool> expected_keep(philox::Key key, std::int64_t n, double p) {
  std::vector<bool> keep;
  for (std::int64_t i = 0; i < n; ++i)
    keep.push_back(philox::word_at(key, static_cast<std::uint64_t>(i)) >= static_cast<std::uint32_t>(p * 0x1p32));
  return keep;
}

TEST(PhiloxWords, EqualTheDefinition) {
  std::uint32_t words[cpu::kPhiloxWords];
  for (std::uint64_t counter : {0ull, 64ull, 0xfffffff0ull, 0x1234567890ull}) {
    cpu::philox_words({7, 11}, counter, words);
    for (int i = 0; i < cpu::kPhiloxWords; ++i)
      ASSERT_EQ(words[i], philox::word_at({7, 11}, 4 * counter + static_cast<std::uint64_t>(i))) << i;
  }
}

struct DropoutCase {
  const char* name;
  Shape sizes;
  double p;
  DType dtype;
  bool channels;
  bool reference;
  friend std::ostream& operator<<(std::ostream& out, const DropoutCase& c) { return out << c.name; }
};

class Dropout : public ::testing::TestWithParam<DropoutCase> {};

TEST_P(Dropout, MaskScaleAndGradientFollowTheDefinition) {
  const DropoutCase& c = GetParam();
  set_reference_kernels(c.reference);
  for (bool strided : {false, true}) {
    const Tensor x = strided ? make_strided(make_input(c.sizes, 1, c.dtype)) : make_input(c.sizes, 1, c.dtype);
    x.set_requires_grad(true);
    manual_seed(42);
    const Tensor out = c.channels ? dropout2d(x, c.p) : dropout(x, c.p);
    const Tensor upstream = make_input(c.sizes, 2, c.dtype);
    out.backward(upstream);
    const std::int64_t inner = c.channels ? c.sizes[2] * c.sizes[3] : 1;
    const std::vector<bool> keep = expected_keep(first_key(42), x.numel() / std::max<std::int64_t>(inner, 1), c.p);
    const auto scaled = [&](const Tensor& source) {
      std::vector<double> values = source.to_vector<double>();
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = keep[i / static_cast<std::size_t>(inner)] ? values[i] / (1 - c.p) : 0.0;
      const Tensor expected = tensor(values);
      return expected.as_strided(c.sizes, contiguous_strides(c.sizes), 0);
    };
    const double tolerance = c.dtype == kFloat64 ? 1e-15 : c.dtype == kFloat32 ? 1e-6 : 1e-2;
    EXPECT_EQ(out.dtype(), c.dtype);
    expect_close(out, scaled(x), tolerance, 0);
    expect_close(x.grad(), scaled(upstream), tolerance, 0);
  }
  set_reference_kernels(false);
}

const DropoutCase kCases[] = {
    {"Float32", {3, 333}, 0.5, kFloat32, false, false},
    {"Float64", {1000}, 0.25, kFloat64, false, false},
    {"Float16", {257}, 0.1, kFloat16, false, false},
    {"BFloat16", {255}, 0.9, kBFloat16, false, false},
    {"SeveralBlocks", {50001}, 0.3, kFloat32, false, false},
    {"OneElement", {}, 0.5, kFloat32, false, false},
    {"Empty", {0, 3}, 0.5, kFloat32, false, false},
    {"Reference", {3, 333}, 0.5, kFloat32, false, true},
    {"Channels", {5, 67, 3, 5}, 0.4, kFloat32, true, false},
    {"ChannelsFloat64", {2, 3, 1, 1}, 0.4, kFloat64, true, false},
    {"ChannelsFloat16", {2, 30, 2, 3}, 0.4, kFloat16, true, false},
    {"ChannelsEmpty", {2, 0, 2, 2}, 0.4, kFloat32, true, false},
    {"ChannelsReference", {5, 67, 3, 5}, 0.4, kFloat32, true, true},
};
INSTANTIATE_TEST_SUITE_P(Ops, Dropout, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(DropoutOp, KeepsTheStatedShare) {
  for (double p : {0.1, 0.5, 0.9}) {
    manual_seed(3);
    const std::int64_t n = 200000;
    const std::vector<double> out = dropout(ones({n}), p).to_vector<double>();
    const auto kept = static_cast<double>(n - std::count(out.begin(), out.end(), 0.0));
    // Five standard deviations.
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

OpCase dropout_case(const Shape& sizes, bool channels = false) {
  return {
      .name = "dropout",
      .inputs = [=] { return TensorList{make_leaf(sizes)}; },
      .run = [=](const TensorList& in) { return TensorList{channels ? dropout2d(in[0], 0.3) : dropout(in[0], 0.3)}; }};
}

TEST(DropoutOp, Operation) {
  check_op(dropout_case({5, 7}));
  check_op(dropout_case({2, 5, 2, 3}, true));
  check_threads(dropout_case({123457}));
  check_threads(dropout_case({9, 40, 20, 20}, true));
}

TEST(DropoutOp, EachCallDrawsAnewAndTheSeedRepeats) {
  const Tensor x = ones({64});
  manual_seed(5);
  const std::vector<double> first = dropout(x).to_vector<double>(), second = dropout(x).to_vector<double>();
  manual_seed(5);
  EXPECT_EQ(dropout(x).to_vector<double>(), first);
  EXPECT_NE(first, second);
  RandomKeyGuard key(3, 1);
  EXPECT_NE(dropout(x).to_vector<double>(), first);
}

TEST(DropoutOp, EvalAndZeroReturnTheInput) {
  const Tensor x = make_leaf({3, 4});
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(dropout(x, 0.0).is_same(x));
  EXPECT_TRUE(dropout(x, 1.0, false).is_same(x));
}

TEST(DropoutOp, OneGivesZeros) {
  const Tensor x = make_leaf({3});
  const Tensor out = dropout(x, 1.0);
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{0, 0, 0}));
  out.backward(ones({3}, {.dtype = kFloat64}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 0}));
}

TEST(DropoutOp, DroppedIsZeroWhateverItWas) {
  manual_seed(42);
  const std::vector<double> out = dropout(full({100}, std::numeric_limits<double>::infinity())).to_vector<double>();
  const std::vector<bool> keep = expected_keep(first_key(42), 100, 0.5);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i] == 0.0, !keep[i]) << i;
}

// Any part along any dimension, forward and backward, by both kernels.
TEST(DropoutOp, APartDropsWhatTheWholeDrops) {
  const Shape sizes{5, 6, 700};
  const auto dropped = [&](const Tensor& values, const std::function<Tensor(const Tensor&)>& drop) {
    const Tensor leaf = copy_contiguous(values);
    leaf.set_requires_grad(true);
    manual_seed(42);
    const Tensor out = drop(leaf);
    out.backward(copy_contiguous(values));
    return std::pair(out.detach(), leaf.grad());
  };
  const Tensor x = make_input(sizes, 1, kFloat32);
  const auto whole = dropped(x, [](const Tensor& t) { return dropout(t, 0.3); });
  for (const bool reference : {false, true}) {
    set_reference_kernels(reference);
    for (int dim = 0; dim < 3; ++dim)
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1}, sizes[dim] / 2})
        for (const std::int64_t count : {std::int64_t{1}, sizes[dim] / 2}) {
          const auto part = dropped(x.narrow(dim, first, count), [&](const Tensor& t) {
            return dropout_of_part(t, {dim - (dim == 2 ? 3 : 0), first, sizes[dim]}, 0.3);
          });
          expect_close(part.first, copy_contiguous(whole.first.narrow(dim, first, count)), 0.0, 0.0);
          expect_close(part.second, copy_contiguous(whole.second.narrow(dim, first, count)), 0.0, 0.0);
        }
  }
  set_reference_kernels(false);
  EXPECT_NE(error_of([&] {
              dropout_of_part(x, {1, 3, 8});
            }).find("elements 3 and on of 8 in dimension 1 do not fit"),
            std::string::npos);
}

TEST(DropoutOp, Errors) {
  EXPECT_EQ(error_of([] { dropout(zeros({2}), 1.5); }), "[dropout] expected a probability p in [0, 1], found 1.5");
  EXPECT_EQ(error_of([] { dropout(zeros({2}), std::nan("")); }),
            "[dropout] expected a probability p in [0, 1], found nan");
  EXPECT_EQ(error_of([] { dropout(zeros({2}, {.dtype = kInt64})); }),
            "[dropout] expected a floating-point tensor, found int64");
  EXPECT_EQ(error_of([] {
              dropout2d(zeros({2, 3}));
            }),
            "[dropout2d] expected shape [N, C, H, W] or [C, H, W], found [2, 3]");
}

}  // namespace
}  // namespace lockstep::testing
