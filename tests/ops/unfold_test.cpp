#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  Shape x;
  Size2d kernel;
  UnfoldOptions options;
};
const Case kCases[] = {
    {{2, 3, 5, 4}, {3, 2}, {}},
    {{1, 2, 6, 7}, 3, {.padding = 1, .stride = 2}},
    {{2, 1, 7, 6}, {2, 3}, {.dilation = {2, 1}, .padding = {0, 2}, .stride = {1, 3}}},
    {{0, 2, 4, 4}, 2, {.stride = 2}},
};

/// Calls f(image, column) for each element of the image that is an element of a column.
template <typename F>
void for_each_pair(const Case& c, F&& f) {
  const std::int64_t n = c.x[0], channels = c.x[1], h = c.x[2], w = c.x[3];
  const UnfoldOptions& o = c.options;
  const std::int64_t rows = (h + 2 * o.padding.h - o.dilation.h * (c.kernel.h - 1) - 1) / o.stride.h + 1;
  const std::int64_t columns = (w + 2 * o.padding.w - o.dilation.w * (c.kernel.w - 1) - 1) / o.stride.w + 1;
  std::int64_t at = 0;
  for (std::int64_t plane = 0; plane < n * channels; ++plane)
    for (std::int64_t ky = 0; ky < c.kernel.h; ++ky)
      for (std::int64_t kx = 0; kx < c.kernel.w; ++kx)
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t column = 0; column < columns; ++column, ++at) {
            const std::int64_t y = row * o.stride.h + ky * o.dilation.h - o.padding.h;
            const std::int64_t x = column * o.stride.w + kx * o.dilation.w - o.padding.w;
            if (y >= 0 && y < h && x >= 0 && x < w) f((plane * h + y) * w + x, at);
          }
}

TEST(Unfold, ValuesAndGradients) {
  for (const Case& c : kCases) {
    check_op({.name = "",
              .inputs = [=] { return TensorList{make_leaf(c.x)}; },
              .run = [=](const TensorList& in) { return TensorList{unfold(in[0], c.kernel, c.options)}; },
              .expected =
                  [=](const TensorList& in) {
                    const Tensor x = copy_contiguous(in[0].detach());
                    const Tensor out = zeros_like(unfold(x, c.kernel, c.options));
                    for_each_pair(c,
                                  [&](std::int64_t i, std::int64_t j) { out.data<double>()[j] = x.data<double>()[i]; });
                    return TensorList{out};
                  }});
    const Shape columns = unfold(zeros(c.x), c.kernel, c.options).sizes();
    check_op({.name = "",
              .inputs = [=] { return TensorList{make_leaf(columns)}; },
              .run =
                  [=](const TensorList& in) {
                    return TensorList{fold(in[0], {c.x[2], c.x[3]}, c.kernel, c.options)};
                  },
              .expected =
                  [=](const TensorList& in) {
                    const Tensor columns = copy_contiguous(in[0].detach()), out = zeros(c.x, {.dtype = kFloat64});
                    for_each_pair(
                        c, [&](std::int64_t i, std::int64_t j) { out.data<double>()[i] += columns.data<double>()[j]; });
                    return TensorList{out};
                  }});
  }
}

TEST(UnfoldErrors, NameTheProblem) {
  EXPECT_NE(error_of([] {
              unfold(zeros({1, 1, 2, 2}), 3);
            }).find("3 x 3 does not fit into a padded image of 2 x 2"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              unfold(zeros({2, 2}), 1);
            }).find("[unfold] expected images [n, c, h, w] or [c, h, w], found [2, 2]"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              fold(zeros({1, 4, 5}), {2, 2}, 2);
            }).find("[fold] expected columns [n, c * 4, 1]"),
            std::string::npos);
}

TEST(Unfold, OneImageNeedsNoBatch) {
  const Tensor x = make_input({2, 3, 4});
  const Tensor columns = unfold(x, 2), image = fold(columns, {3, 4}, 2);
  expect_close(columns, unfold(x.unsqueeze(0), 2).squeeze(0), 0, 0);
  expect_close(image, fold(columns.unsqueeze(0), {3, 4}, 2).squeeze(0), 0, 0);
}

}  // namespace
}  // namespace lockstep::testing
