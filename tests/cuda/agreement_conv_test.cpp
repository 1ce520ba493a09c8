#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/conv2d/conv2d_device.h"
#include "lockstep/core/cuda/dynamic_library.h"
#include "lockstep/core/factories.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Convolution = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Conv2dOptions&);

Tensor conv_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  return relu(conv2d(x, weight, bias, options));
}
Tensor conv_pool_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  return relu(max_pool2d(conv2d(x, weight, bias, options), 2));
}

OpCase conv(const std::string& name, Shape x, Shape weight, Conv2dOptions options = {}, Convolution f = conv2d,
            bool bias = true) {
  return {.name = name,
          .inputs =
              [=] {
                return TensorList{make_leaf(x, 1), make_leaf(weight, 2), make_leaf({weight[0]}, 3)};
              },
          .run = [=](const TensorList& in) { return TensorList{f(in[0], in[1], bias ? in[2] : Tensor(), options)}; },
          .slack = 4.0,
          // Rounded twice or once, a small value may fall on either side of relu's kink.
          .halves = f == conv2d};
}

/// Whole numbers: products and sums are exact in half types too, so that all agree on maxima, ties and relu's kink.
Tensor whole_numbers(const Shape& sizes, std::uint32_t seed) {
  std::vector<double> values = make_input(sizes, seed).to_vector<double>();
  for (double& value : values) value = std::round(2.0 * value);
  Tensor leaf = tensor(values).view(sizes);
  leaf.set_requires_grad(true);
  return leaf;
}

OpCase exact_pool(const std::string& name, Shape x, Shape weight, Conv2dOptions options = {}) {
  OpCase made = conv(name, x, weight, options, conv_pool_relu);
  made.inputs = [=] {
    return TensorList{whole_numbers(x, 1), whole_numbers(weight, 2), whole_numbers({weight[0]}, 3)};
  };
  made.halves = true;
  return made;
}

const OpCase kCases[] = {
    conv("lenet", {6, 1, 28, 28}, {6, 1, 5, 5}),
    conv("lenet_relu", {6, 1, 28, 28}, {6, 1, 5, 5}, {}, conv_relu),
    conv("relu", {3, 4, 9, 8}, {6, 4, 3, 3}, {}, conv_relu),
    conv("plain", {3, 4, 9, 8}, {6, 4, 3, 3}),
    conv("no_bias", {3, 4, 9, 8}, {6, 4, 3, 3}, {}, conv2d, false),
    conv("relu_no_bias", {3, 4, 9, 8}, {6, 4, 3, 3}, {}, conv_relu, false),
    conv("padding", {2, 3, 7, 7}, {5, 3, 3, 3}, {.padding = 1}),
    conv("stride", {2, 3, 11, 9}, {5, 3, 3, 3}, {.stride = {2, 3}, .padding = {1, 0}}),
    conv("dilation", {2, 3, 11, 11}, {4, 3, 3, 3}, {.padding = 2, .dilation = 2}),
    conv("groups", {2, 6, 7, 7}, {4, 3, 3, 3}, {.groups = 2}),
    conv("depthwise", {2, 6, 7, 7}, {6, 1, 3, 3}, {.padding = 1, .groups = 6}),
    conv("pointwise", {2, 8, 6, 6}, {5, 8, 1, 1}),
    conv("one_output", {9, 3, 4, 4}, {5, 3, 4, 4}),
    conv("one_output_plain", {300, 2, 2, 2}, {40, 2, 2, 2}),
    conv("uneven", {2, 3, 8, 12}, {4, 3, 2, 5}),
    conv("many_images", {90, 2, 10, 10}, {3, 2, 3, 3}),
    conv("pool", {6, 1, 28, 28}, {10, 1, 5, 5}, {}, conv_pool_relu),
    conv("pool_second", {5, 10, 12, 12}, {20, 10, 5, 5}, {}, conv_pool_relu),
    conv("pool_odd", {3, 2, 9, 10}, {4, 2, 3, 3}, {.padding = {0, 1}}, conv_pool_relu),
    conv("pool_odd_width", {3, 2, 10, 9}, {4, 2, 3, 3}, {.padding = {0, 1}}, conv_pool_relu),
    conv("pool_no_bias", {3, 2, 9, 8}, {4, 2, 3, 3}, {.padding = 1}, conv_pool_relu, false),
    conv("pool_stride", {3, 4, 14, 13}, {4, 2, 3, 3}, {.stride = 2, .dilation = {1, 2}, .groups = 2}, conv_pool_relu),
    conv("pool_3", {5, 9, 11, 13}, {7, 9, 3, 3}, {.padding = 1}, conv_pool_relu),
    conv("pool_3_no_bias", {40, 2, 8, 8}, {9, 2, 3, 3}, {.padding = {2, 1}}, conv_pool_relu, false),
    conv("pool_5_padding", {3, 8, 9, 9}, {3, 8, 5, 5}, {.padding = 4}, conv_pool_relu),
    conv("pool_many_images", {130, 1, 12, 12}, {8, 1, 5, 5}, {}, conv_pool_relu),
    conv("pool_many_taps", {3, 32, 8, 8}, {30, 32, 5, 5}, {}, conv_pool_relu),
    conv("pool_large", {2, 1, 66, 70}, {3, 1, 3, 3}, {}, conv_pool_relu),
    conv("pool_wide", {2, 33, 7, 8}, {34, 33, 3, 3}, {.padding = 1}, conv_pool_relu),
    conv("pool_wide_odd", {2, 33, 6, 7}, {34, 33, 3, 3}, {.padding = 1}, conv_pool_relu, false),
    conv("pool_2", {2, 3, 7, 8}, {4, 3, 2, 2}, {}, conv_pool_relu),
    exact_pool("pool_exact_3", {5, 2, 9, 8}, {4, 2, 3, 3}, {.padding = 1}),
    exact_pool("pool_exact_5", {3, 1, 12, 12}, {9, 1, 5, 5}),
    exact_pool("pool_exact_wide", {2, 2, 9, 8}, {40, 2, 3, 3}, {.padding = 1}),
    exact_pool("pool_exact_stride", {3, 2, 14, 13}, {4, 2, 3, 3}, {.stride = 2}),
    conv("pool_empty", {0, 2, 9, 8}, {4, 2, 3, 3}, {}, conv_pool_relu),
    conv("no_images", {0, 3, 8, 8}, {4, 3, 3, 3}),
    conv("no_channels", {2, 0, 8, 8}, {4, 0, 3, 3}),
};

class CudaConv : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaConv, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaConv, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

// Every function of cuDNN that is used, and what needs no device: what it is told of a convolution.
TEST(Cudnn, TakesTheGeometryAsMeant) {
  if (!cuda::cudnn_library().is_available()) GTEST_SKIP() << cuda::cudnn_library().why_unavailable();
  ASSERT_NO_THROW(conv2d_device::require_library());
  struct Case {
    Shape x, weight;
    Conv2dOptions options;
  };
  for (const auto& [x, weight, options] :
       {Case{{6, 1, 28, 28}, {6, 1, 5, 5}, {}},
        {{2, 3, 11, 9}, {5, 3, 3, 3}, {.stride = {2, 3}, .padding = {1, 0}}},
        {{2, 6, 12, 11}, {4, 3, 3, 2}, {.padding = 2, .dilation = {2, 1}, .groups = 2}}})
    for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
      const Conv2dGeometry g = conv2d_geometry(empty(x), empty(weight), {}, options);
      EXPECT_EQ(conv2d_device::output_sizes(g, dtype), Shape({g.n, g.out, g.oh, g.ow})) << name(dtype);
    }
}

}  // namespace
}  // namespace lockstep::testing
