#include <string>
#include <vector>

#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  const char* name;
  Shape x;
  Size2d output;
};

Tensor expected_pool(const Case& c, const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  const std::int64_t h = x.size(-2), w = x.size(-1), planes = x.numel() / (h * w);
  std::vector<double> out;
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (std::int64_t i = 0; i < c.output.h; ++i)
      for (std::int64_t j = 0; j < c.output.w; ++j) {
        double sum = 0;
        int count = 0;
        for (std::int64_t y = 0; y < h; ++y)
          for (std::int64_t column = 0; column < w; ++column) {
            // In row window i if floor(i * h / oh) <= y < ceil((i + 1) * h / oh).
            const bool row_in = y >= i * h / c.output.h && y * c.output.h < (i + 1) * h;
            const bool column_in = column >= j * w / c.output.w && column * c.output.w < (j + 1) * w;
            if (!row_in || !column_in) continue;
            sum += values[static_cast<std::size_t>((plane * h + y) * w + column)];
            ++count;
          }
        out.push_back(sum / count);
      }
  Shape sizes = x.sizes();
  sizes[sizes.dim() - 2] = c.output.h;
  sizes[sizes.dim() - 1] = c.output.w;
  return tensor(out).as_strided(sizes, contiguous_strides(sizes), 0);
}

OpCase pool(const Case& c) {
  return {.name = c.name,
          .inputs = [=] { return TensorList{make_leaf(c.x)}; },
          .run = [=](const TensorList& in) { return TensorList{adaptive_avg_pool2d(in[0], c.output)}; },
          .expected = [=](const TensorList& in) { return TensorList{expected_pool(c, in[0])}; }};
}

class AdaptiveAvgPool2dCases : public ::testing::TestWithParam<Case> {};

TEST_P(AdaptiveAvgPool2dCases, values_and_gradients) {
  check_op(pool(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Windows, AdaptiveAvgPool2dCases,
                         ::testing::Values(Case{"global", {2, 3, 5, 7}, 1}, Case{"even", {1, 2, 6, 8}, {3, 2}},
                                           Case{"uneven", {2, 1, 7, 5}, {3, 4}}, Case{"same", {1, 2, 4, 3}, {4, 3}},
                                           Case{"large", {2, 3, 19, 23}, 1}, Case{"whole_rows", {1, 2, 37, 20}, {3, 1}},
                                           Case{"wide", {2, 1, 9, 53}, {2, 3}}, Case{"larger", {1, 1, 3, 2}, {5, 7}},
                                           Case{"three_dims", {2, 5, 4}, 2}, Case{"empty_batch", {0, 2, 4, 4}, 2},
                                           Case{"no_output", {1, 2, 4, 4}, {0, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AdaptiveAvgPool2d, thread_count_does_not_change_bits) {
  for (const std::int64_t side : {1, 7}) check_threads(pool({"", {40, 16, 24, 24}, side}));
}

// Long rows are added up as lanes are, so that their bits do not depend on the width of vectors; as wide as the image,
// the rows of a window are one.
TEST(AdaptiveAvgPool2d, long_rows_are_added_up_in_lanes) {
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    const Tensor x = make_input({2, 3, 20, 37}, 1).to(dtype), floats = x.to(kFloat32);
    const Tensor whole = adaptive_avg_pool2d(x, {4, 1}).to(kFloat32),
                 halves = adaptive_avg_pool2d(x, {1, 2}).to(kFloat32);
    const auto sum = [&](std::int64_t begin, std::int64_t length) {
      return cpu::lane_sum<float>(length, [&](std::int64_t i) { return floats.data<float>()[begin + i]; });
    };
    const auto rounded = [&](float value) { return full({}, value).to(dtype).item<float>(); };
    for (std::int64_t plane = 0; plane < 6; ++plane) {
      for (std::int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(whole.data<float>()[plane * 4 + i], rounded(sum((plane * 20 + i * 5) * 37, 5 * 37) / (5 * 37)));
      float right = 0;
      for (std::int64_t y = 0; y < 20; ++y) right += sum((plane * 20 + y) * 37 + 18, 19);
      EXPECT_EQ(halves.data<float>()[plane * 2 + 1], rounded(right / (20 * 19)));
    }
  }
}

// One window a plane: eight planes together, each with the sum that it has alone.
TEST(AdaptiveAvgPool2d, whole_planes_together_are_as_each_alone) {
  for (const DType dtype : {kFloat32, kBFloat16})
    for (const std::int64_t size : {1, 3, 4, 8, 9, 49, 63, 64, 65, 100}) {
      const Tensor x = make_input({1, 21, 1, size}, 1).to(dtype), floats = x.to(kFloat32);
      const Tensor averages = adaptive_avg_pool2d(x, 1).to(kFloat32);
      for (std::int64_t plane = 0; plane < 21; ++plane) {
        const float* const values = floats.data<float>() + plane * size;
        float sum = 0;
        if (size >= 4 * cpu::kSumLanes)
          sum = cpu::lane_sum<float>(size, [&](std::int64_t i) { return values[i]; });
        else
          for (std::int64_t i = 0; i < size; ++i) sum += values[i];
        EXPECT_EQ(averages.data<float>()[plane], full({}, sum / size).to(dtype).item<float>()) << size << " " << plane;
      }
    }
}

TEST(AdaptiveAvgPool2d, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, Size2d output) { return error_of([&] { adaptive_avg_pool2d(x, output); }); };
  EXPECT_NE(message(ones({4, 4}), 2).find("found [4, 4]"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), {2, -1}).find("found 2x-1"), std::string::npos);
  EXPECT_NE(message(ones({1, 0, 4}), 2).find("image is empty"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
