// conv2d() with paddings by name.

#include <string>

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// x inside as many zeros as keep its size; the odd one at the bottom and the right.
Tensor framed(const Tensor& x, std::int64_t down, std::int64_t right) {
  const Tensor frame = zeros({x.size(0), x.size(1), x.size(2) + down, x.size(3) + right}, options_of(x));
  copy_values(x.detach(), frame.narrow(2, down / 2, x.size(2)).narrow(3, right / 2, x.size(3)));
  return frame;
}

TEST(Conv2dPadding, SameKeepsTheSize) {
  for (const Shape& kernel : {Shape{2, 2, 3, 3}, Shape{2, 2, 2, 3}, Shape{2, 2, 3, 4}, Shape{2, 2, 1, 2}}) {
    for (const std::int64_t dilation : {1, 2}) {
      SCOPED_TRACE(to_string(kernel) + " dilated by " + std::to_string(dilation));
      check_op({.name = "",
                .inputs =
                    [=] {
                      return TensorList{make_leaf({1, 2, 5, 6}), make_leaf(kernel, 2), make_leaf({2}, 3)};
                    },
                .run =
                    [=](const TensorList& in) {
                      return TensorList{conv2d(in[0], in[1], in[2], {.padding = kSame, .dilation = dilation})};
                    },
                .slack = 4.0,
                .expected =
                    [=](const TensorList& in) {
                      const Tensor x = framed(in[0], dilation * (kernel[2] - 1), dilation * (kernel[3] - 1));
                      return TensorList{conv2d(x, in[1].detach(), in[2].detach(), {.dilation = dilation})};
                    }});
    }
  }
}

TEST(Conv2dPadding, ValidIsNone) {
  const Tensor image = make_input({2, 5, 5}), weight = make_input({3, 2, 2, 2}, 2);
  expect_close(conv2d(image, weight, {}, {.padding = kValid}), conv2d(image, weight), 0, 0);
}

TEST(Conv2dPadding, SameTakesOneImageAndNoStride) {
  const Tensor image = make_input({2, 5, 5}), weight = make_input({3, 2, 2, 2}, 2);
  EXPECT_EQ(to_string(conv2d(image, weight, {}, {.padding = kSame}).sizes()), "[3, 5, 5]");
  EXPECT_NE(error_of([&] {
              conv2d(image, weight, {}, {.stride = 2, .padding = kSame});
            }).find("needs a stride of 1, found 2x2"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
