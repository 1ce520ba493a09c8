#include "lockstep/core/elementwise.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

// Every element of `out` is met once, with the offsets of the operands that belong to it, whatever the blocks cut.
void expect_all_met(const Tensor& out, const Tensor& a, const Tensor& b) {
  const auto loop = cpu::plan_loop<3>(out.sizes(), {&out, &a, &b});
  using Offsets = std::array<std::int64_t, 3>;
  std::vector<Offsets> by_planes(static_cast<std::size_t>(out.numel()), Offsets{-1, -1, -1}), by_rows = by_planes;
  const auto meet = [&](std::vector<Offsets>& met, const Offsets& at) {
    Offsets& slot = met[static_cast<std::size_t>(at[0])];
    EXPECT_EQ(slot[0], -1) << "met twice";
    slot = at;
  };
  cpu::for_each_plane(
      loop, [&](const auto& offset, const auto& steps, const auto& stride, std::int64_t rows, std::int64_t length) {
        EXPECT_LE(rows * length, cpu::kElementBlock);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t i = 0; i < length; ++i) {
            Offsets at;
            for (std::size_t n = 0; n < 3; ++n) at[n] = offset[n] + r * steps[n] + i * stride[n];
            meet(by_planes, at);
          }
      });
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      Offsets at;
      for (std::size_t n = 0; n < 3; ++n) at[n] = offset[n] + i * stride[n];
      meet(by_rows, at);
    }
  });
  EXPECT_EQ(by_planes, by_rows);
  const int dims = out.dim();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    Offsets at{i, 0, 0};
    std::int64_t rest = i;
    for (int d = dims - 1; d >= 0; --d) {
      const std::int64_t index = rest % out.sizes()[d];
      rest /= out.sizes()[d];
      if (a.sizes()[d] > 1) at[1] += index * a.strides()[d];
      if (b.sizes()[d] > 1) at[2] += index * b.strides()[d];
    }
    ASSERT_EQ(by_planes[static_cast<std::size_t>(i)], at) << "element " << i;
  }
}

TEST(Elementwise, PlanesAndRowsMeetEveryElementOnce) {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
  for (int round = 0; round < 60; ++round) {
    Shape sizes, of_a, of_b;
    const std::int64_t dims = pick(4);
    for (std::int64_t d = 0; d < dims; ++d) {
      sizes.push_back(dims < 3 ? pick(300) : pick(40) % 23 + 1);
      of_a.push_back(random() % 3 == 0 ? 1 : sizes.back());
      of_b.push_back(random() % 3 == 0 ? 1 : sizes.back());
    }
    Tensor a = empty(of_a), b = empty(of_b);
    const int last = static_cast<int>(dims) - 1;
    if (random() % 2 == 0 && last > 0) {  // a view with gaps
      Shape wider = of_a;
      wider[last] += 3;
      a = empty(wider).as_strided(of_a, contiguous_strides(wider), 0);
    }
    if (random() % 3 == 0 && last > 0) {  // a transposed one
      Shape turned = of_b, strides;
      std::swap(turned[0], turned[last]);
      strides = contiguous_strides(turned);
      std::swap(strides[0], strides[last]);
      b = empty(turned).as_strided(of_b, strides, 0);
    }
    expect_all_met(empty(sizes), a, b);
  }
}

}  // namespace
}  // namespace lockstep
