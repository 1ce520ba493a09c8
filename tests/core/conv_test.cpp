#include "lockstep/core/cpu/conv/conv.h"

#include <gtest/gtest.h>

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

// Accuracy is tested with the op.
TEST(Conv, InstructionSetsAndThreadsAgreeToTheBit) {
  const Conv convolutions[] = {
      make(3, 5, 9, 11, 7, 3, 3, 1, 1, 1, 1),   make(2, 64, 8, 8, 20, 3, 3, 1, 1, 1, 1),
      make(5, 20, 4, 4, 33, 3, 3, 1, 1, 1, 1),  make(2, 6, 13, 10, 9, 5, 3, 2, 2, 1, 3),
      make(1, 3, 40, 37, 18, 7, 7, 2, 3, 1, 1), make(2, 17, 9, 9, 40, 1, 1, 2, 0, 1, 1),
      make(2, 4, 20, 20, 6, 3, 3, 1, 2, 2, 1),  make(3, 6, 19, 21, 6, 3, 3, 1, 1, 1, 6),
      make(2, 4, 15, 14, 4, 5, 5, 2, 2, 1, 4),  make(1, 70, 6, 70, 3, 1, 2, 1, 0, 1, 1),
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

// An image's result does not depend on those beside it.
TEST(Conv, AnImageHasTheBitsItHasAlone) {
  const Conv several = make(5, 20, 5, 6, 33, 3, 3, 1, 1, 1, 1);
  Conv one = several;
  one.n = 1;
  const Results all = run(several, instruction_set()), first = run(one, instruction_set());
  EXPECT_EQ(std::memcmp(all.out.data(), first.out.data(), 33 * 30 * sizeof(float)), 0);
}

}  // namespace
}  // namespace lockstep::cpu
