#include "lockstep/core/cpu/conv/conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

std::vector<float> values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> result(static_cast<std::size_t>(count));
  std::uint64_t state = seed;
  for (float& value : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(state >> 40) * 0x1p-23f - 1;
  }
  return result;
}

Conv make(std::int64_t n, std::int64_t in, std::int64_t h, std::int64_t w, std::int64_t out, std::int64_t kh,
          std::int64_t kw, std::int64_t stride, std::int64_t padding, std::int64_t dilation, std::int64_t groups) {
  const auto size = [&](std::int64_t image, std::int64_t kernel) {
    return (image + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  };
  return {.n = n,
          .in = in,
          .h = h,
          .w = w,
          .out = out,
          .kh = kh,
          .kw = kw,
          .oh = size(h, kh),
          .ow = size(w, kw),
          .stride_h = stride,
          .stride_w = stride,
          .padding_h = padding,
          .padding_w = padding,
          .dilation_h = dilation,
          .dilation_w = dilation,
          .groups = groups};
}

struct Results {
  std::vector<float> out, x_grad, weight_grad;
  friend bool operator==(const Results& a, const Results& b) {
    const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    return same(a.out, b.out) && same(a.x_grad, b.x_grad) && same(a.weight_grad, b.weight_grad);
  }
};

Results run(const Conv& c, InstructionSet set) {
  const float nan = std::numeric_limits<float>::quiet_NaN();  // what is left out shows
  const std::vector<float> x = values(c.n * c.in * c.h * c.w, 1), bias = values(c.out, 3);
  const std::vector<float> weight = values(c.out * c.group_in() * c.kh * c.kw, 2);
  const std::vector<float> grad = values(c.n * c.out * c.oh * c.ow, 4);
  Results r{std::vector<float>(grad.size(), nan), std::vector<float>(x.size(), nan),
            std::vector<float>(weight.size(), nan)};
  conv_forward(c, x.data(), weight.data(), bias.data(), false, r.out.data(), nullptr, set);
  conv_backward_data(c, grad.data(), weight.data(), r.x_grad.data(), set);
  conv_backward_weight(c, grad.data(), x.data(), r.weight_grad.data(), set);
  return r;
}

TEST(Conv, InstructionSetsAndThreadsAgreeToTheBit) {
  const Conv convolutions[] = {
      make(3, 5, 9, 11, 7, 3, 3, 1, 1, 1, 1),    make(2, 64, 8, 8, 20, 3, 3, 1, 1, 1, 1),
      make(5, 20, 4, 4, 33, 3, 3, 1, 1, 1, 1),   make(2, 6, 13, 10, 9, 5, 3, 2, 2, 1, 3),
      make(1, 3, 40, 37, 18, 7, 7, 2, 3, 1, 1),  make(2, 17, 9, 9, 40, 1, 1, 2, 0, 1, 1),
      make(2, 4, 20, 20, 6, 3, 3, 1, 2, 2, 1),   make(3, 6, 19, 21, 6, 3, 3, 1, 1, 1, 6),
      make(2, 4, 15, 14, 4, 5, 5, 2, 2, 1, 4),   make(1, 70, 6, 70, 3, 1, 2, 1, 0, 1, 1),
      make(9, 40, 4, 4, 70, 3, 3, 1, 1, 1, 1),   make(2, 17, 16, 18, 30, 3, 3, 1, 0, 1, 1),
      make(2, 600, 7, 9, 18, 3, 3, 1, 2, 1, 1),  make(2, 12, 9, 14, 20, 3, 3, 3, 1, 1, 1),
      make(3, 9, 18, 37, 20, 1, 1, 3, 0, 1, 1),  make(2, 5, 8, 8, 9, 3, 3, 2, 1, 3, 1),
      make(8, 11, 7, 7, 9, 7, 7, 1, 3, 1, 1),    make(7, 3, 6, 7, 1, 5, 5, 1, 2, 1, 1),
      make(1, 1, 5, 9, 20, 23, 23, 1, 11, 1, 1), make(3, 4, 9, 11, 4, 3, 3, 1, 1, 1, 4),
      make(2, 3, 12, 47, 3, 3, 3, 2, 1, 1, 3),   make(2, 3, 7, 40, 3, 5, 5, 1, 2, 1, 3),
      make(1, 3, 11, 33, 3, 5, 5, 2, 2, 1, 3),   make(2, 3, 2, 3, 3, 7, 7, 1, 3, 1, 3),
      make(2, 3, 13, 25, 3, 7, 7, 2, 3, 1, 3),   make(1, 2, 1, 1, 2, 3, 3, 2, 1, 1, 2),
      make(2, 3, 17, 36, 3, 3, 3, 1, 0, 1, 3),   make(2, 34, 9, 12, 40, 3, 3, 1, 1, 1, 2),
      make(3, 18, 10, 9, 36, 1, 1, 2, 0, 1, 2),  make(2, 3, 9, 13, 5, 1, 1, 4, 0, 1, 1),
      make(2, 2, 5, 1, 4, 3, 1, 2, 1, 1, 1),     make(7, 12, 19, 14, 24, 3, 3, 2, 1, 1, 4),
      make(1, 1024, 5, 6, 9, 1, 1, 1, 0, 1, 1),  make(5, 16, 17, 23, 32, 3, 3, 1, 1, 1, 2),
      make(2, 1024, 4, 3, 40, 1, 1, 2, 0, 1, 2), make(2, 3, 14, 50, 3, 9, 9, 1, 4, 1, 3),
      make(2, 3, 23, 25, 3, 4, 5, 1, 0, 1, 3),   make(1, 2, 21, 16, 2, 11, 11, 1, 5, 1, 2),
      make(2, 1, 12, 13, 20, 5, 5, 1, 0, 1, 1),  make(2, 1, 11, 17, 40, 2, 11, 1, 0, 1, 1),
      make(5, 16, 32, 33, 18, 3, 3, 1, 1, 1, 1),
  };
  for (const Conv& c : convolutions) {
    SCOPED_TRACE(::testing::Message() << c.in << " to " << c.out << ", kernel " << c.kh << "x" << c.kw);
    const Results expected = run(c, instruction_sets().front());
    for (const InstructionSet set : instruction_sets())
      for (const int threads : {1, 3}) {
        const int before = num_threads();
        set_num_threads(threads);
        EXPECT_TRUE(run(c, set) == expected) << name(set) << ", " << threads << " thread(s)";
        set_num_threads(before);
      }
  }
}

// Each result beside a plain sum in float64, relative to the root mean square of all.
double largest_error(const std::vector<float>& actual, const std::vector<double>& expected) {
  double squares = 0, largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    squares += expected[i] * expected[i];
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= largest)) largest = error;  // NaN too
  }
  return largest / std::sqrt(squares / static_cast<double>(actual.size()));
}

// Minimal filtering at edges of every kind, and phases of strides.
TEST(Conv, IsAccurate) {
  for (const Conv& c : {make(3, 20, 9, 11, 33, 3, 3, 1, 1, 1, 1),  make(2, 16, 4, 4, 18, 3, 3, 1, 1, 1, 1),
                        make(2, 17, 16, 18, 30, 3, 3, 1, 0, 1, 1), make(1, 33, 12, 7, 16, 3, 3, 1, 2, 1, 1),
                        make(2, 6, 9, 14, 7, 3, 3, 2, 1, 1, 1),    make(1, 5, 10, 11, 6, 5, 5, 3, 2, 1, 1),
                        make(2, 7, 13, 13, 9, 1, 1, 2, 0, 1, 1),   make(3, 5, 19, 21, 5, 3, 3, 1, 1, 1, 5),
                        make(2, 5, 14, 28, 5, 3, 3, 2, 1, 1, 5),   make(1, 4, 15, 13, 4, 5, 5, 2, 2, 1, 4),
                        make(1, 3, 9, 70, 3, 2, 3, 2, 0, 1, 3),    make(2, 3, 3, 5, 3, 3, 3, 2, 1, 1, 3),
                        make(1, 3, 12, 40, 3, 3, 3, 2, 1, 2, 3),   make(2, 4, 11, 20, 4, 3, 3, 3, 1, 1, 4),
                        make(9, 11, 7, 7, 18, 7, 7, 1, 3, 1, 1),   make(3, 8, 8, 9, 12, 5, 5, 2, 2, 1, 2),
                        make(2, 3, 12, 47, 3, 3, 3, 2, 1, 1, 3),   make(2, 3, 7, 40, 3, 5, 5, 1, 2, 1, 3),
                        make(2, 3, 13, 25, 3, 7, 7, 2, 3, 1, 3),   make(1, 3, 6, 18, 3, 7, 7, 1, 3, 1, 3),
                        make(2, 34, 9, 12, 40, 3, 3, 1, 1, 1, 2),  make(3, 18, 10, 9, 36, 1, 1, 2, 0, 1, 2),
                        make(2, 3, 23, 50, 3, 9, 9, 1, 4, 1, 3),   make(2, 3, 13, 25, 3, 4, 5, 1, 1, 1, 3)}) {
    SCOPED_TRACE(::testing::Message() << c.in << " to " << c.out << ", stride " << c.stride_h << ", groups "
                                      << c.groups);
    const std::vector<float> x = values(c.n * c.in * c.h * c.w, 1), bias = values(c.out, 3);
    const std::vector<float> weight = values(c.out * c.group_in() * c.kh * c.kw, 2);
    const std::vector<float> grad = values(c.n * c.out * c.oh * c.ow, 4);
    std::vector<double> out(grad.size()), x_grad(x.size()), weight_grad(weight.size());
    for (std::int64_t at = 0; at < c.n * c.out * c.oh * c.ow; ++at) {
      const std::int64_t image = at / (c.out * c.oh * c.ow), o = at / (c.oh * c.ow) % c.out;
      const std::int64_t y = at / c.ow % c.oh * c.stride_h - c.padding_h, left = at % c.ow * c.stride_w - c.padding_w;
      const auto i = static_cast<std::size_t>(at);
      out[i] = bias[static_cast<std::size_t>(o)];
      for (std::int64_t k = 0; k < c.group_in() * c.kh * c.kw; ++k) {
        const std::int64_t row = y + k / c.kw % c.kh * c.dilation_h, column = left + k % c.kw * c.dilation_w;
        if (row < 0 || row >= c.h || column < 0 || column >= c.w) continue;
        const std::int64_t channel = o / c.group_out() * c.group_in() + k / (c.kh * c.kw);
        const auto from = static_cast<std::size_t>(((image * c.in + channel) * c.h + row) * c.w + column);
        const auto by = static_cast<std::size_t>(o * c.group_in() * c.kh * c.kw + k);
        out[i] += static_cast<double>(x[from]) * weight[by];
        x_grad[from] += static_cast<double>(grad[i]) * weight[by];
        weight_grad[by] += static_cast<double>(grad[i]) * x[from];
      }
    }
    const Results r = run(c, instruction_set());
    EXPECT_LT(largest_error(r.out, out), 4e-6);
    EXPECT_LT(largest_error(r.x_grad, x_grad), 4e-6);
    EXPECT_LT(largest_error(r.weight_grad, weight_grad), 4e-6);
  }
}

// What is not finite reaches what sees it and nothing else, whatever a result is computed from: sums of minimal
// filtering hold more than the result needs.
TEST(Conv, AnInfinityReachesWhatSeesItAlone) {
  constexpr std::int64_t kRow = 5, kColumn = 6, kPlane = 144;
  const Conv c = make(2, 16, 12, 12, 16, 3, 3, 1, 1, 1, 1);
  for (const float strange : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = values(c.n * c.in * kPlane, 1), grad = values(c.n * c.out * kPlane, 4);
    const std::vector<float> weight = values(c.out * c.in * 9, 2);
    std::vector<float> out(grad.size()), x_grad(x.size()), weight_grad(weight.size());
    const auto near = [&](const std::vector<float>& result) {
      for (std::size_t at = 0; at < result.size(); ++at) {
        const auto i = static_cast<std::int64_t>(at), y = i / 12 % 12, left = i % 12;
        const bool sees = i < c.out * kPlane && std::abs(y - kRow) <= 1 && std::abs(left - kColumn) <= 1;
        EXPECT_EQ(std::isfinite(result[at]), !sees) << at / kPlane << ": " << y << ", " << left;
      }
    };
    x[kRow * 12 + kColumn] = strange;  // of the first image's first channel
    conv_forward(c, x.data(), weight.data(), nullptr, false, out.data());
    near(out);
    const ConvSink sink = [&](std::int64_t first, std::int64_t count, const float* handed) {
      std::copy_n(handed, count * c.out * kPlane, out.data() + first * c.out * kPlane);
    };
    conv_forward(c, x.data(), weight.data(), nullptr, false, nullptr, &sink);
    near(out);
    grad[kRow * 12 + kColumn] = strange;
    conv_backward_data(c, grad.data(), weight.data(), x_grad.data());
    near(x_grad);

    // In a corner of the image: the taps below and right of the middle never see it.
    x = values(c.n * c.in * kPlane, 1), grad = values(c.n * c.out * kPlane, 4);
    x[0] = strange;
    conv_backward_weight(c, grad.data(), x.data(), weight_grad.data());
    for (std::size_t at = 0; at < weight_grad.size(); ++at) {
      const bool sees = at / 9 % 16 == 0 && at % 9 / 3 < 2 && at % 3 < 2;
      EXPECT_EQ(std::isfinite(weight_grad[at]), !sees) << at;
    }
  }
}

// Steps beside the image are left out as a tile of results allows, and tiles differ with the instruction set and the
// number of images: where that could be seen, it must not.
TEST(Conv, WhatIsBesideTheImageCountsAsZeros) {
  const Conv several = make(9, 3, 7, 7, 10, 5, 5, 1, 2, 1, 1);
  Conv one = several;
  one.n = 1;
  std::vector<float> x = values(several.n * several.in * 49, 1), weight = values(several.out * several.in * 25, 2);
  const auto results = [&](const Conv& c, InstructionSet set) {
    Results r{std::vector<float>(static_cast<std::size_t>(c.n * c.out * 49)),
              std::vector<float>(static_cast<std::size_t>(c.n * c.in * 49)),
              {}};
    std::vector<float> grad(r.out.size());
    for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = x[i % x.size()];
    conv_forward(c, x.data(), weight.data(), nullptr, false, r.out.data(), nullptr, set);
    conv_backward_data(c, grad.data(), weight.data(), r.x_grad.data(), set);
    return r;
  };
  const auto expect_equal = [&] {
    const Results all = results(several, instruction_sets().front());
    for (const InstructionSet set : instruction_sets()) {
      EXPECT_TRUE(results(several, set) == all) << name(set);
      const Results first = results(one, set);
      EXPECT_EQ(std::memcmp(all.out.data(), first.out.data(), first.out.size() * sizeof(float)), 0) << name(set);
    }
    return all;
  };
  // Every product underflows, some to -0, which adding 0 * weight turns to 0 where the weight is positive.
  for (float& value : x) value *= 1e-30f;
  for (float& value : weight) value *= 1e-30f;
  for (const float value : expect_equal().out) EXPECT_FALSE(std::signbit(value)) << value;
  // An infinite weight times a zero is NaN.
  x = values(several.n * several.in * 49, 1), weight = values(several.out * several.in * 25, 2);
  weight[0] = std::numeric_limits<float>::infinity();  // of a corner: the first row and column see a zero there
  const Results all = expect_equal();
  EXPECT_TRUE(std::isnan(all.out[0]));
  EXPECT_TRUE(std::isinf(all.out[3 * 7 + 3]));
}

// Differences of numbers near the end of the range exceed it, though the results do not.
TEST(Conv, LargeNumbersThatCancelAreComputed) {
  const Conv c = make(1, 16, 8, 8, 16, 3, 3, 1, 1, 1, 1);
  std::vector<float> x(static_cast<std::size_t>(c.in * 64)), weight(static_cast<std::size_t>(c.out * c.in * 9));
  for (std::size_t i = 0; i < 64; ++i) x[i] = i % 2 == 0 ? 2.5e38f : -2.5e38f;
  for (std::size_t o = 0; o < 16; ++o) weight[o * 16 * 9 + 4] = 0.5f;  // the middle tap of the first channel
  std::vector<float> out(static_cast<std::size_t>(c.out * 64));
  conv_forward(c, x.data(), weight.data(), nullptr, false, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], 0.5f * x[i % 64]) << i;
}

// A sink is handed what the result would be.
TEST(Conv, ASinkTakesTheSameBits) {
  for (const Conv& c : {make(5, 20, 5, 6, 33, 3, 3, 1, 1, 1, 1), make(3, 16, 26, 26, 16, 3, 3, 1, 0, 1, 1),
                        make(3, 6, 9, 8, 9, 3, 3, 2, 1, 1, 3)}) {
    const std::vector<float> x = values(c.n * c.in * c.h * c.w, 1), bias = values(c.out, 3);
    const std::vector<float> weight = values(c.out * c.group_in() * 9, 2);
    const std::int64_t size = c.out * c.oh * c.ow;
    std::vector<float> whole(static_cast<std::size_t>(c.n * size)), handed(whole.size());
    conv_forward(c, x.data(), weight.data(), bias.data(), true, whole.data());
    const ConvSink sink = [&](std::int64_t first, std::int64_t count, const float* results) {
      std::copy_n(results, count * size, handed.data() + first * size);
    };
    conv_forward(c, x.data(), weight.data(), bias.data(), true, nullptr, &sink);
    EXPECT_EQ(handed, whole);
  }
}

// An image's result does not depend on those beside it.
TEST(Conv, AnImageHasTheBitsItHasAlone) {
  const Conv several = make(5, 20, 5, 6, 33, 3, 3, 1, 1, 1, 1);
  Conv one = several;
  one.n = 1;
  const Results all = run(several, instruction_set()), first = run(one, instruction_set());
  EXPECT_EQ(std::memcmp(all.out.data(), first.out.data(), 33 * 30 * sizeof(float)), 0);
}

// Vectors read beyond a plane, into its neighbours: nothing of these reaches its results.
TEST(Conv, ADepthwiseChannelSeesItselfAlone) {
  constexpr std::int64_t kChannels = 5, kChannel = 2;
  for (const Conv& c : {make(2, kChannels, 28, 28, kChannels, 3, 3, 2, 1, 1, kChannels),
                        make(2, kChannels, 13, 15, kChannels, 3, 3, 2, 1, 1, kChannels),
                        make(2, kChannels, 12, 17, kChannels, 3, 3, 1, 2, 1, kChannels),
                        make(2, kChannels, 7, 7, kChannels, 5, 5, 1, 2, 1, kChannels),
                        make(2, kChannels, 9, 11, kChannels, 4, 9, 1, 2, 1, kChannels),
                        make(2, kChannels, 6, 7, kChannels, 7, 7, 2, 3, 1, kChannels)}) {
    SCOPED_TRACE(::testing::Message() << c.h << "x" << c.w << ", kernel " << c.kh << ", stride " << c.stride_h);
    std::vector<float> x = values(c.n * c.in * c.h * c.w, 1), grad = values(c.n * c.out * c.oh * c.ow, 4);
    const std::vector<float> weight = values(c.out * c.kh * c.kw, 2);
    const auto results = [&](InstructionSet set) {
      Results r{std::vector<float>(grad.size()), std::vector<float>(x.size()), std::vector<float>(weight.size())};
      conv_forward(c, x.data(), weight.data(), nullptr, false, r.out.data(), nullptr, set);
      conv_backward_data(c, grad.data(), weight.data(), r.x_grad.data(), set);
      conv_backward_weight(c, grad.data(), x.data(), r.weight_grad.data(), set);
      return r;
    };
    // All channels but one become `value`.
    const auto overwrite = [](std::vector<float>& planes, std::int64_t images, float value) {
      const std::size_t size = planes.size() / static_cast<std::size_t>(images * kChannels);
      for (std::size_t i = 0; i < planes.size(); ++i)
        if (i / size % kChannels != kChannel) planes[i] = value;
    };
    for (const InstructionSet set : instruction_sets()) {
      overwrite(x, c.n, 0), overwrite(grad, c.n, 0);
      Results zeros = results(set);
      overwrite(x, c.n, std::numeric_limits<float>::quiet_NaN()),
          overwrite(grad, c.n, std::numeric_limits<float>::infinity());
      Results strange = results(set);
      for (Results* r : {&zeros, &strange})
        overwrite(r->out, c.n, 0), overwrite(r->x_grad, c.n, 0), overwrite(r->weight_grad, 1, 0);
      EXPECT_TRUE(zeros == strange) << name(set);
    }
  }
}

// A channel's result does not depend on how many are computed with it: few are computed without packing the image.
TEST(Conv, AnImageTooLargeIsRefused) {
  const Conv c = make(1, 2, 40000, 40000, 3, 1, 1, 1, 0, 1, 1);
  try {
    conv_forward(c, nullptr, nullptr, nullptr, false, nullptr);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an image of 3200000000 elements"), std::string::npos) << error.what();
  }
}

TEST(Conv, AFewChannelsHaveTheBitsTheyHaveAmongMany) {
  constexpr std::int64_t kMany = 8, kTaps = 25;
  for (const InstructionSet set : instruction_sets()) {
    for (std::int64_t few = 1; few <= 4; ++few) {
      const Conv all = make(2, 40, 52, 52, kMany, 5, 5, 1, 0, 1, 1);  // two blocks of steps
      Conv some = all;
      some.out = few;
      const std::vector<float> x = values(2 * 40 * 52 * 52, 1), weight = values(kMany * 40 * kTaps, 2);
      const std::vector<float> bias = values(kMany, 3);
      std::vector<float> out_all(2 * kMany * 48 * 48), out_some(static_cast<std::size_t>(2 * few * 48 * 48));
      conv_forward(all, x.data(), weight.data(), bias.data(), true, out_all.data(), nullptr, set);
      conv_forward(some, x.data(), weight.data(), bias.data(), true, out_some.data(), nullptr, set);
      for (std::int64_t image = 0; image < 2; ++image)
        EXPECT_EQ(std::memcmp(out_all.data() + image * kMany * 48 * 48, out_some.data() + image * few * 48 * 48,
                              static_cast<std::size_t>(few * 48 * 48) * sizeof(float)),
                  0);

      const Conv wide = make(1, kMany, 96, 96, 70, 5, 5, 2, 2, 1, 1);  // two blocks of steps in some phases
      Conv narrow = wide;
      narrow.in = few;
      const std::vector<float> grad = values(70 * 48 * 48, 4), many = values(70 * kMany * kTaps, 5);
      std::vector<float> chosen;
      for (std::int64_t o = 0; o < 70; ++o)
        chosen.insert(chosen.end(), many.begin() + o * kMany * kTaps, many.begin() + (o * kMany + few) * kTaps);
      std::vector<float> x_all(kMany * 96 * 96), x_some(static_cast<std::size_t>(few * 96 * 96));
      conv_backward_data(wide, grad.data(), many.data(), x_all.data(), set);
      conv_backward_data(narrow, grad.data(), chosen.data(), x_some.data(), set);
      EXPECT_EQ(std::memcmp(x_all.data(), x_some.data(), x_some.size() * sizeof(float)), 0) << few;
    }
  }
}

}  // namespace
}  // namespace lockstep::cpu
