#pragma once

// Cases of operations that programs beside the image classifiers use: recurrent cells, transposed convolutions, images
// of other sizes, scans, paddings, losses. Checked by themselves in tests/ops, on a device in tests/cuda.

#include <functional>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing::program_cases {

inline OpCase of_one(const char* name, const Shape& sizes, const std::function<Tensor(const Tensor&)>& run) {
  return {name, [=] { return TensorList{make_leaf(sizes, 1)}; },
          [=](const TensorList& in) { return TensorList{run(in[0])}; }};
}

inline OpCase cell(const char* name, RecurrentCell kind, std::int64_t gates, bool reverse) {
  return {name,
          [=] {
            return TensorList{make_leaf({5, 3, 4}, 1),      make_leaf({3, 6}, 2),         make_leaf({3, 6}, 3),
                              make_leaf({gates * 6, 4}, 4), make_leaf({gates * 6, 6}, 5), make_leaf({gates * 6}, 6),
                              make_leaf({gates * 6}, 7)};
          },
          [=](const TensorList& in) {
            const CellState start{in[1], kind == RecurrentCell::lstm ? in[2] : Tensor()};
            const RecurrentResult result = recurrent(kind, in[0], start, {in[3], in[4], in[5], in[6]}, reverse);
            const Tensor last = kind == RecurrentCell::lstm ? result.state.c : in[2] * 2.0;
            return TensorList{result.output, result.state.h, last};
          }};
}

inline OpCase transposed(const char* name, const Shape& x, const Shape& weight, const ConvTranspose2dOptions& options) {
  return {name,
          [=] {
            return TensorList{make_leaf(x, 1), make_leaf(weight, 2)};
          },
          [=](const TensorList& in) { return TensorList{conv_transpose2d(in[0], in[1], {}, options)}; }};
}

/// All of them.
inline std::vector<OpCase> all() {
  return {
      cell("rnn_tanh", RecurrentCell::rnn_tanh, 1, false),
      cell("rnn_relu", RecurrentCell::rnn_relu, 1, true),
      cell("lstm", RecurrentCell::lstm, 4, false),
      cell("lstm_reverse", RecurrentCell::lstm, 4, true),
      cell("gru", RecurrentCell::gru, 3, false),
      transposed("conv_transpose2d", {2, 3, 4, 5}, {3, 4, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}),
      transposed("conv_transpose2d_groups", {2, 4, 3, 3}, {4, 2, 2, 2}, {.stride = 2, .groups = 2}),
      of_one("interpolate_nearest", {2, 3, 5, 4},
             [](const Tensor& x) {
               return interpolate(x, {.size = {8, 9}});
             }),
      of_one("interpolate_bilinear", {2, 3, 5, 4},
             [](const Tensor& x) { return interpolate(x, {.scale_factor = 2, .mode = InterpolateMode::bilinear}); }),
      of_one("interpolate_corners", {2, 3, 7, 6},
             [](const Tensor& x) {
               return interpolate(x, {.size = {4, 11}, .mode = InterpolateMode::bilinear, .align_corners = true});
             }),
      of_one("interpolate_linear", {2, 3, 5},
             [](const Tensor& x) { return interpolate(x, {.scale_factor = 2, .mode = InterpolateMode::linear}); }),
      of_one("interpolate_bicubic", {2, 3, 5, 4},
             [](const Tensor& x) {
               return interpolate(x, {.size = {8, 3}, .mode = InterpolateMode::bicubic});
             }),
      of_one("interpolate_trilinear", {1, 2, 3, 4, 3},
             [](const Tensor& x) {
               return interpolate(x, {.mode = InterpolateMode::trilinear, .volume_size = {5, 4, 2}});
             }),
      of_one("cumsum", {5, 40, 3}, [](const Tensor& x) { return cumsum(x, 1); }),
      of_one("cumprod", {5, 7}, [](const Tensor& x) { return cumprod(x, 1); }),
      of_one("prod", {6, 7}, [](const Tensor& x) { return prod(x, 0); }),
      of_one("pad_reflect", {2, 3, 5},
             [](const Tensor& x) {
               return pad(x, {2, 1, 1, 1}, PadMode::reflect);
             }),
      of_one("pad_constant", {2, 3, 5},
             [](const Tensor& x) {
               return pad(x, {2, -1, 0, 3}, PadMode::constant, 0.5);
             }),
      of_one("pad_circular_cut_off", {2, 3, 5},
             [](const Tensor& x) {
               return pad(x, {-1, 2, 1, 0}, PadMode::circular);
             }),
      of_one("flip_roll", {4, 5}, [](const Tensor& x) { return roll(flip(x, {0}), {2}, {1}); }),
      of_one("softplus", {4, 50}, [](const Tensor& x) { return softplus(x) + mish(x) + elu(x) + erf(x); }),
      of_one("losses", {4, 50},
             [](const Tensor& x) {
               const Tensor y = make_input(x.sizes(), 9, kFloat64).to(x.dtype()).to(x.device());
               return l1_loss(x, y) + huber_loss(x, y) + smooth_l1_loss(x, y, 0.5) +
                      binary_cross_entropy(sigmoid(x), sigmoid(y));
             }),
  };
}

}  // namespace lockstep::testing::program_cases
