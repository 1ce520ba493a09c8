// Kernels that go through memory in another order than the plain ones, or compute in another type: the plain ones'
// bits, or the mathematical result within a bound.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/recurrent/recurrent.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/exp8.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"
#include "lockstep/core/vector_math.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using testing::same_bits;

struct WithReference {
  WithReference() { set_reference_kernels(true); }
  ~WithReference() { set_reference_kernels(false); }
};

TEST(FastKernels, EightExponentialsAtOnceHaveTheBitsOfOne) {
  std::vector<float> values{0.0f,    -0.0f,   1.0f,    -1.0f,  88.7f,  89.0f,    -89.0f,     -87.4f,
                            -104.0f, -103.9f, -1e-40f, 1e-40f, -1e30f, -103.97f, -kInfinity, -kInfinity};
  for (int i = 0; i < 198000; ++i) values.push_back(-110.0f + 0.001f * static_cast<float>(i));  // to below 89
  for (std::size_t i = 0; i + 8 <= values.size(); i += 8) {
    float together[8];
    cpu::store8(together, cpu::exp_to_one8(cpu::load8(&values[i])));
    for (std::size_t j = 0; j < 8; ++j)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(together[j]), std::bit_cast<std::uint32_t>(math::exp(values[i + j])))
          << values[i + j];
  }
  const cpu::Vec8 none = cpu::exp_to_one8(cpu::broadcast8(kNan));
  for (int j = 0; j < 8; ++j) EXPECT_TRUE(std::isnan(none[j]));
}

// Both sets of functions for rows of attention, beside the loops of cpu::lane_sum() and math::exp().
TEST(FastKernels, RowsOfAttentionHaveTheBitsOfLoops) {
  constexpr std::int64_t kRows = 3, kStride = 288, kKeys = 270;
  manual_seed(5);
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  for (const detail::RowFunctions* functions : {&detail::kRowsByEight, &detail::row_functions()})
    for (const std::int64_t step : {0, 1})
      for (std::int64_t seen = -1; seen <= kKeys; seen += seen < 40 ? 1 : 23) {
        const Tensor scores = randn({kRows, kStride}) * 20.0, slopes = randn({kRows, kStride});
        if (seen % 3 == 0) scores.fill_(-kInfinity);
        if (seen % 7 == 5) scores.data<float>()[kStride] = kNan;
        const std::int64_t across = std::min(kKeys, (std::max<std::int64_t>(seen, 0) + step * kRows + 15) / 16 * 16);
        const auto strip = [&](const Tensor& rows) {
          return detail::RowStrip<float>{rows.data<float>(), kStride, kRows, kKeys, seen, step, across};
        };
        const Tensor weights = copy_contiguous(scores), p = copy_contiguous(scores), s = copy_contiguous(slopes);
        float top[kRows] = {-kInfinity, 3.0f, 90.0f}, sum[kRows] = {0.0f, 2.0f, 1e-3f}, factor[kRows];
        const float before_top[kRows] = {top[0], top[1], top[2]}, before_sum[kRows] = {sum[0], sum[1], sum[2]};
        const float log_sums[kRows] = {60.0f, 31.5f, kInfinity}, deltas[kRows] = {0.25f, -1.0f, 0.0f};
        functions->weigh(strip(weights), top, sum, factor);
        functions->slopes(strip(p), s.data<float>(), log_sums, deltas, 0.125f);
        for (std::int64_t i = 0; i < kRows; ++i) {
          const std::int64_t n = std::clamp<std::int64_t>(seen + i * step, 0, kKeys);
          const float* from = scores.data<float>() + i * kStride;
          const float* slope = slopes.data<float>() + i * kStride;
          const float found = n == 0 ? before_top[i] : std::max(before_top[i], cpu::lane_max<float>(n, from));
          const float shift = found == -kInfinity ? 0.0f : found;
          const auto weight = [&](std::int64_t j) { return math::exp(from[j] - shift); };
          const float wanted_sum = n == 0 ? before_sum[i] : before_sum[i] * factor[i] + cpu::lane_sum<float>(n, weight);
          if (std::isnan(wanted_sum)) {
            EXPECT_TRUE(std::isnan(sum[i]));
            continue;
          }
          EXPECT_EQ(bits(top[i]), bits(found));
          EXPECT_EQ(bits(sum[i]), bits(wanted_sum)) << n;
          if (before_top[i] != found)
            EXPECT_EQ(bits(factor[i]), bits(before_top[i] == -kInfinity ? 0.0f : math::exp(before_top[i] - shift)));
          else
            EXPECT_EQ(factor[i], 1.0f);
          for (std::int64_t j = 0; j < across; ++j) {
            const float e = j < n ? math::exp(from[j] - log_sums[i]) : 0.0f;
            ASSERT_EQ(bits(weights.data<float>()[i * kStride + j]), bits(j < n ? weight(j) : 0.0f)) << n << ", " << j;
            ASSERT_EQ(bits(p.data<float>()[i * kStride + j]), bits(e)) << n << ", " << j;
            ASSERT_EQ(bits(s.data<float>()[i * kStride + j]), bits(j < n ? e * (slope[j] - deltas[i]) * 0.125f : 0.0f));
          }
        }
      }
}

TEST(FastKernels, RecurrentStepsHaveTheBitsOfSteps1By1) {
  manual_seed(3);
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16})
    for (const RecurrentCell cell : {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn_tanh})
      for (const std::int64_t width : {5, 40}) {
        const std::int64_t gates = cell == RecurrentCell::lstm  ? 4
                                   : cell == RecurrentCell::gru ? 3
                                                                : 1,
                           steps = 6, n = 3;
        const CellWeights weights{randn({gates * width, 7}).to(dtype), randn({gates * width, width}).to(dtype),
                                  randn({gates * width}).to(dtype), randn({gates * width}).to(dtype)};
        const Tensor x = randn({steps, n, 7}).to(dtype);
        const RecurrentResult whole = recurrent(cell, x, {}, weights, false);
        CellState state;
        for (std::int64_t t = 0; t < steps; ++t) {
          const RecurrentResult one = recurrent(cell, x.narrow(0, t, 1), state, weights, false);
          state = one.state;
          EXPECT_TRUE(same_bits(one.output, whole.output.narrow(0, t, 1)))
              << "cell " << static_cast<int>(cell) << ", " << name(dtype) << ", width " << width << ", step " << t;
        }
      }
}

TEST(FastKernels, RecurrentGradientsAreThoseOfStepsOneByOne) {
  manual_seed(4);
  for (const RecurrentCell cell : {RecurrentCell::lstm, RecurrentCell::gru}) {
    const std::int64_t width = 70, gates = (cell == RecurrentCell::lstm ? 4 : 3) * width, steps = 5, n = 2;
    const Tensor w_ih = randn({gates, 3}), w_hh = randn({gates, width}) * 0.1, x = randn({steps, n, 3});
    const auto gradient = [&](bool at_once) {
      const Tensor w = w_hh.clone();
      w.set_requires_grad(true);
      const CellWeights weights{w_ih, w, {}, {}};
      CellState state;
      Tensor last;
      if (at_once) {
        last = recurrent(cell, x, {}, weights, false).state.h;
      } else {
        for (std::int64_t t = 0; t < steps; ++t)
          state = recurrent(cell, x.narrow(0, t, 1), state, weights, false).state;
        last = state.h;
      }
      last.sum().backward();
      return w.grad();
    };
    const Tensor expected = gradient(false), found = gradient(true);
    const double apart = (expected - found).abs().max().item();
    EXPECT_LE(apart, 1e-5 * expected.abs().max().item());  // the weights' gradient is added up in another order
  }
}

TEST(FastKernels, MaxPoolsOfAnyWindowHaveTheReferencesBits) {
  manual_seed(5);
  const Tensor plain = randn({2, 3, 13, 19});
  const Tensor odd = plain.clone();
  for (std::int64_t i = 0; i < odd.numel(); i += 7) odd.data<float>()[i] = i % 3 == 0 ? kNan : -kInfinity;
  const Tensor ties = plain.clone();
  for (std::int64_t i = 0; i < ties.numel(); ++i) ties.data<float>()[i] = static_cast<float>(i / 3 % 2);
  const MaxPool2dOptions cases[] = {{.stride = 2, .padding = 1},
                                    {.stride = 1, .padding = 1},
                                    {.stride = 3},
                                    {.stride = 2, .padding = 1, .dilation = 2},
                                    {.stride = 1, .padding = {0, 1}, .dilation = {3, 5}}};
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const Tensor& image : {plain, odd, ties})
      for (const MaxPool2dOptions& options : cases)
        for (const std::int64_t kernel : {2, 3}) {
          if (kernel == 2 && options.padding.h > 1) continue;
          const auto run = [&](Tensor& gradient) {
            const Tensor x = image.to(dtype).clone();
            x.set_requires_grad(true);
            const Tensor y = max_pool2d(x, kernel, options);
            y.backward(full(y.sizes(), 0.5, {.dtype = dtype}));
            gradient = x.grad();
            return y.detach();
          };
          Tensor expected_gradient, gradient, expected;
          {
            const WithReference reference;
            expected = run(expected_gradient);
          }
          const Tensor found = run(gradient);
          EXPECT_TRUE(same_bits(expected.isnan(), found.isnan()));
          EXPECT_TRUE(same_bits(expected.masked_fill(expected.isnan(), 0.0), found.masked_fill(found.isnan(), 0.0)));
          EXPECT_TRUE(same_bits(expected_gradient, gradient)) << name(dtype) << " kernel " << kernel;
        }
}

// Gradients of maxima and minima with ties and NaN, over each run of dimensions.
TEST(FastKernels, GradientsOfExtremesHaveTheReferencesBits) {
  manual_seed(8);
  for (const DType dtype : {kFloat32, kFloat64})
    for (const Shape& sizes : {Shape{}, Shape{37}, Shape{5, 10}, Shape{3, 7, 300}, Shape{4, 1, 6, 5}, Shape{0, 3}})
      for (int d = -1; d < sizes.dim(); ++d) {
        Tensor values = (randn(sizes, {.dtype = dtype}) * 2).round();
        values = values.masked_fill(values > 4, NAN);
        const Shape dims = d < 0 ? Shape{} : d + 1 < sizes.dim() && d % 2 == 1 ? Shape{d, d + 1} : Shape{d};
        if (values.numel() == 0 && d != 1) continue;
        Tensor gradients[2];
        for (const bool reference : {false, true}) {
          set_reference_kernels(reference);
          const Tensor x = values.clone().requires_grad_();
          const Tensor y = sizes.dim() % 2 == 0 ? x.max(dims) : x.min(dims, true);
          y.backward(arange(y.numel(), dtype).view(y.sizes()) - 1.5);
          gradients[reference] = x.grad();
        }
        set_reference_kernels(false);
        EXPECT_TRUE(same_bits(gradients[0].isnan(), gradients[1].isnan())) << to_string(sizes) << " " << d;
        for (Tensor& g : gradients) g = g.masked_fill(g.isnan(), 0.0);
        EXPECT_TRUE(same_bits(gradients[0], gradients[1])) << to_string(sizes) << " " << d;
      }
}

TEST(FastKernels, CopiesAcrossMemoryAreElementByElement) {
  for (const DType dtype : {kUInt8, kBFloat16, kFloat32, kInt64})
    for (const Shape& sizes : {Shape{8, 8}, Shape{7, 90}, Shape{65, 9}, Shape{130, 71}}) {
      const Tensor x = remainder(arange(3 * sizes.numel()), 251).to(dtype).view({3, sizes[0], sizes[1]});
      const Tensor turned = x.transpose(1, 2).contiguous(), numbers = x.to(kFloat64), found = turned.to(kFloat64);
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < sizes[0]; ++j)
          for (std::int64_t k = 0; k < sizes[1]; ++k)
            ASSERT_EQ(found.data<double>()[(i * sizes[1] + k) * sizes[0] + j],
                      numbers.data<double>()[(i * sizes[0] + j) * sizes[1] + k])
                << name(dtype) << " " << to_string(sizes);
      const Tensor outer = x.permute({2, 1, 0}).contiguous().permute({2, 1, 0}).contiguous();
      EXPECT_TRUE(same_bits(outer, x));
    }
}

TEST(FastKernels, ScatterAddAndGatherAlongEachDimension) {
  manual_seed(6);
  const Shape sizes{5, 4, 70}, index_sizes{9, 3, 67};
  const Tensor x = randn(sizes);
  for (int dim = 0; dim < 3; ++dim) {
    Shape many = index_sizes;
    for (int d = 0; d < 3; ++d)
      if (d != dim) many[d] = std::min(many[d], sizes[d]);
    const Tensor index = randint(0, sizes[dim], many), source = randn(many);
    const Tensor expected = x.clone(), taken = empty(many);
    const auto at = [&](const Shape& of, std::int64_t i, std::int64_t j, std::int64_t k) {
      return (i * of[1] + j) * of[2] + k;
    };
    for (std::int64_t i = 0; i < many[0]; ++i)
      for (std::int64_t j = 0; j < many[1]; ++j)
        for (std::int64_t k = 0; k < many[2]; ++k) {
          const std::int64_t from = at(many, i, j, k), to = index.data<std::int64_t>()[from];
          const std::int64_t place = at(sizes, dim == 0 ? to : i, dim == 1 ? to : j, dim == 2 ? to : k);
          expected.data<float>()[place] += source.data<float>()[from];
          taken.data<float>()[from] = x.data<float>()[place];
        }
    EXPECT_TRUE(same_bits(gather(x, dim, index), taken)) << dim;
    const double apart = (scatter_add(x, dim, index, source) - expected).abs().max().item();
    EXPECT_LE(apart, 1e-5) << dim;
  }
}

TEST(FastKernels, ScatterWritesTheLastOfRepeatedPlaces) {
  manual_seed(7);
  const Shape sizes{5, 4, 70};
  for (int dim = 0; dim < 3; ++dim) {
    Shape many{5, 3, 67};
    many[dim] = 9;
    const Tensor x = randn(sizes).set_requires_grad(true), source = randn(many).set_requires_grad(true);
    const Tensor index = randint(0, sizes[dim], many), grad = randn(sizes);
    const Tensor expected = x.detach().clone(), to_x = grad.clone(), to_source = zeros(many);
    std::vector<std::int64_t> last(static_cast<std::size_t>(x.numel()), -1);
    for (std::int64_t from = 0; from < index.numel(); ++from) {
      const std::int64_t i = from / many[2] / many[1], j = from / many[2] % many[1], k = from % many[2];
      const std::int64_t to = index.data<std::int64_t>()[from];
      const std::int64_t place =
          ((dim == 0 ? to : i) * sizes[1] + (dim == 1 ? to : j)) * sizes[2] + (dim == 2 ? to : k);
      expected.data<float>()[place] = source.data<float>()[from];
      to_x.data<float>()[place] = 0;
      last[static_cast<std::size_t>(place)] = from;
    }
    for (std::size_t place = 0; place < last.size(); ++place)
      if (last[place] >= 0) to_source.data<float>()[last[place]] = grad.data<float>()[place];
    const Tensor found = scatter(x, dim, index, source);
    EXPECT_TRUE(same_bits(found.detach(), expected)) << dim;
    found.backward(grad);
    EXPECT_TRUE(same_bits(x.grad(), to_x)) << dim;
    EXPECT_TRUE(same_bits(source.grad(), to_source)) << dim;
  }
}

TEST(FastKernels, RunsOfAnIndexAreCopiedTogether) {
  manual_seed(8);
  std::vector<std::int64_t> index;
  for (std::int64_t i = 99; i >= 0; --i) index.push_back(i);
  for (std::int64_t i = 0; i < 100; ++i) index.push_back(i);
  for (const std::int64_t i : {7, 7, 3}) index.push_back(i);
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kInt64, kBool}) {
    SCOPED_TRACE(name(dtype));
    const Tensor x = (randn({3, 100}) * 9.0).to(dtype);
    const Tensor found = x.index_select(1, tensor(index)).to(kFloat64), exact = x.to(kFloat64);
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::size_t i = 0; i < index.size(); ++i)
        ASSERT_EQ(found.data<double>()[row * 203 + static_cast<std::int64_t>(i)],
                  exact.data<double>()[row * 100 + index[i]])
            << row << " " << i;
  }
}

TEST(FastKernels, RowsOfDoublesAreTheFunctionsToTheBit) {
  manual_seed(9);
  Tensor x = randn({3000}, {.dtype = kFloat64}) * 3.0;
  for (const bool special : {false, true}) {
    SCOPED_TRACE(special);
    if (special) {
      const double values[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 6.0, -8.5, 1e-310, 30.0, 1e300};
      for (std::size_t i = 0; i < std::size(values); ++i) x.data<double>()[i * 7] = values[i];
    }
    const Tensor y = special ? x : x.abs();
    const Tensor ones_like_y = ones({3000}, {.dtype = kFloat64});
    const auto check = [&](const Tensor& found, auto&& function) {
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        const double expected = function(y.data<double>()[i]), value = found.data<double>()[i];
        ASSERT_TRUE(expected != expected
                        ? value != value
                        : std::bit_cast<std::uint64_t>(value) == std::bit_cast<std::uint64_t>(expected))
            << y.data<double>()[i] << ": " << value << ", expected " << expected;
      }
    };
    check(erf(y), math::portable_erf);
    for (const double exponent : {1.7, -0.3, 5.0, 40.0}) {
      SCOPED_TRACE(exponent);
      check(pow(y, exponent), [&](double at) { return math::portable_pow(at, exponent); });
      check(pow(y, ones_like_y * exponent), [&](double at) { return math::portable_pow(at, exponent); });
    }
    check(gelu(y), [](double at) { return at * std::fma(0.5, math::portable_erf(at * 0.7071067811865476), 0.5); });
    const Tensor leaf = y.clone().set_requires_grad(true);
    pow(leaf, 1.7).backward(ones_like_y);
    check(leaf.grad(), [](double at) { return 1.7 * math::portable_pow(at, 1.7 - 1.0); });
    leaf.set_grad({});
    cos(leaf).backward(ones_like_y);
    check(leaf.grad(), [](double at) { return -math::portable_sin(at); });
  }
}

// In units in the last place of the result.
double error_of(float found, double expected) {
  const auto rounded = static_cast<float>(expected);
  if (std::isnan(expected)) return std::isnan(found) ? 0.0 : 1e30;
  if (std::isinf(rounded) || rounded == 0.0f)
    return std::bit_cast<std::uint32_t>(found) == std::bit_cast<std::uint32_t>(rounded) ? 0.0 : 1e30;
  const double unit = static_cast<double>(std::nextafter(std::fabs(rounded), kInfinity)) - std::fabs(rounded);
  return std::fabs(static_cast<double>(found) - expected) / unit;
}

TEST(FastKernels, PowersAreThoseOfDoubleAndItsSpecialCases) {
  const float special[] = {0.0f,       -0.0f,  1.0f,   -1.0f,     2.0f,      -2.0f,       0.5f,   -0.5f, 3.0f,
                           -3.0f,      1e-40f, 3e38f,  -3e38f,    1e-45f,    17.0f,       -17.0f, 1e30f, kInfinity,
                           -kInfinity, kNan,   127.0f, 0.999999f, 1.000001f, 33554432.0f, 4097.0f};
  for (const float x : special)
    for (const float y : special)
      EXPECT_LE(error_of(math::pow(x, y), std::pow(static_cast<double>(x), static_cast<double>(y))), 0.51)
          << x << " to the power " << y << " gives " << math::pow(x, y);
  manual_seed(7);
  const Tensor bases = exp(randn({20000}) * 10.0), exponents = randn({20000}) * 5.0;
  for (std::int64_t i = 0; i < bases.numel(); ++i) {
    const float x = bases.data<float>()[i], y = exponents.data<float>()[i];
    ASSERT_LE(error_of(math::pow(x, y), std::pow(static_cast<double>(x), static_cast<double>(y))), 0.51)
        << x << " to the power " << y;
  }
}

TEST(FastKernels, SinesHoldNearZeroAndFarAway) {
  manual_seed(8);
  const Tensor exponents = randn({40000}) * 25.0, signs = randn({40000});
  for (std::int64_t i = 0; i < exponents.numel(); ++i) {
    const float x = std::copysign(std::exp2(exponents.data<float>()[i]), signs.data<float>()[i]);
    ASSERT_LE(error_of(math::sin(x), std::sin(static_cast<double>(x))), 0.51) << x;
    ASSERT_LE(error_of(math::cos(x), std::cos(static_cast<double>(x))), 0.51) << x;
  }
  EXPECT_TRUE(std::signbit(math::sin(-0.0f)) && !std::signbit(math::sin(0.0f)));
  EXPECT_TRUE(std::isnan(math::sin(kInfinity)) && std::isnan(math::cos(kNan)));
  // A huge neighbour in the same row changes no bits.
  const Tensor row = linspace(-50.0, 50.0, 200), mixed = row.clone();
  mixed.data<float>()[100] = 1e30f;
  const Tensor alone = sin(row), beside = sin(mixed);
  for (std::int64_t i = 0; i < row.numel(); ++i)
    EXPECT_TRUE(i == 100 || alone.data<float>()[i] == beside.data<float>()[i]) << i;
}

}  // namespace
}  // namespace lockstep
