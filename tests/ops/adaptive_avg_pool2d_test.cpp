#include "lockstep/autograd/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"

#include <string>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

struct Case {
  const char* name;
  Shape x;
  Size2d output;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

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

class AdaptiveAvgPool2dCases : public ::testing::TestWithParam<Case> {};

TEST_P(AdaptiveAvgPool2dCases, values) {
  const Case& c = GetParam();
  const Tensor x = make_input(c.x), expected = expected_pool(c, x);
  expect_close(adaptive_avg_pool2d(x, c.output), expected, 1e-12, 1e-12);
  expect_close(adaptive_avg_pool2d(make_strided(x), c.output), expected, 1e-12, 1e-12);
  expect_close(adaptive_avg_pool2d(make_input(c.x, 1, kFloat32), c.output), expected, 1e-5, 1e-6);
  expect_close(adaptive_avg_pool2d(make_input(c.x, 1, kFloat16), c.output), expected, 2e-3, 2e-3);
  expect_close(adaptive_avg_pool2d(make_input(c.x, 1, kBFloat16), c.output), expected, 2e-2, 2e-2);
}

TEST_P(AdaptiveAvgPool2dCases, gradients) {
  const Case& c = GetParam();
  gradcheck([&](const std::vector<Tensor>& in) { return adaptive_avg_pool2d(in[0], c.output); }, {make_leaf(c.x)});
}

INSTANTIATE_TEST_SUITE_P(Windows, AdaptiveAvgPool2dCases,
                         ::testing::Values(Case{"global", {2, 3, 5, 7}, 1}, Case{"even", {1, 2, 6, 8}, {3, 2}},
                                           Case{"uneven", {2, 1, 7, 5}, {3, 4}}, Case{"same", {1, 2, 4, 3}, {4, 3}},
                                           Case{"larger", {1, 1, 3, 2}, {5, 7}}, Case{"three_dims", {2, 5, 4}, 2},
                                           Case{"empty_batch", {0, 2, 4, 4}, 2},
                                           Case{"no_output", {1, 2, 4, 4}, {0, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AdaptiveAvgPool2d, thread_count_does_not_change_bits) {
  const int before = num_threads();
  std::vector<float> bits[2];
  for (int run = 0; run < 2; ++run) {
    set_num_threads(1 + 2 * run);
    const Tensor x = make_leaf({40, 16, 24, 24}, 1, kFloat32);
    adaptive_avg_pool2d(x, 7).backward(make_input({40, 16, 7, 7}, 2, kFloat32));
    bits[run] = x.grad().to_vector<float>();
  }
  set_num_threads(before);
  EXPECT_EQ(bits[0], bits[1]);
}

TEST(AdaptiveAvgPool2d, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, Size2d output) {
    return testing::error_of([&] { adaptive_avg_pool2d(x, output); });
  };
  EXPECT_NE(message(ones({4, 4}), 2).find("found [4, 4]"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), {2, -1}).find("found 2x-1"), std::string::npos);
  EXPECT_NE(message(ones({1, 0, 4}), 2).find("image is empty"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
