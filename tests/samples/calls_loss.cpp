// Losses and layers that tests/samples/calls_layer.cpp has no room for.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

Reduction reduction_of(Call& c) {
  const std::string word = c.text(-1, "reduction", "mean");
  if (word == "mean") return Reduction::mean;
  if (word == "sum") return Reduction::sum;
  if (word == "none") return Reduction::none;
  throw NotExpressible{"there is no reduction " + word};
}

/// A number, or a list of one.
std::int64_t one(Call& c, int position, const char* name, std::int64_t otherwise) {
  if (!c.given(position, name)) return otherwise;
  if (!c.is_list(position, name)) return c.integer(position, name);
  const Shape sizes = c.shape(position, name);
  if (sizes.dim() != 1) throw NotExpressible{std::string("one number for ") + name};
  return sizes[0];
}

Results convolution_1d(Call& c) {
  Conv1dOptions options;
  options.stride = one(c, 3, "stride", 1);
  const bool named = c.given(4, "padding") && c.json(4, "padding").is_string();
  options.padding = !named ? one(c, 4, "padding", 0) : c.text(4, "padding", "valid") == "same" ? -1 : 0;
  options.dilation = one(c, 5, "dilation", 1);
  options.groups = c.integer(6, "groups", 1);
  return conv1d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results transposed_1d(Call& c) {
  ConvTranspose1dOptions options;
  options.stride = one(c, 3, "stride", 1);
  options.padding = one(c, 4, "padding", 0);
  options.output_padding = one(c, 5, "output_padding", 0);
  options.groups = c.integer(6, "groups", 1);
  options.dilation = one(c, 7, "dilation", 1);
  return conv_transpose1d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results transposed_2d(Call& c) {
  ConvTranspose2dOptions options;
  options.stride = c.size2d(3, "stride", 1);
  options.padding = c.size2d(4, "padding", 0);
  options.output_padding = c.size2d(5, "output_padding", 0);
  options.groups = c.integer(6, "groups", 1);
  options.dilation = c.size2d(7, "dilation", 1);
  return conv_transpose2d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results resized(Call& c, InterpolateMode mode) {
  InterpolateOptions options{.mode = mode};
  const Tensor x = c.tensor(0, "input");
  if (x.dim() == 5 && c.is_list(1, "size")) {
    const auto sizes = c.json(1, "size").get<std::vector<std::int64_t>>();
    options.volume_size = {sizes.at(0), sizes.at(1), sizes.at(2)};
  } else if (x.dim() == 5) {
    options.volume_size = one(c, 1, "size", 0);
  } else {
    options.size = c.is_list(1, "size") && x.dim() == 3 ? Size2d(one(c, 1, "size", 0)) : c.size2d(1, "size", 0);
  }
  if (c.is_list(2, "scale_factor")) throw NotExpressible{"a scale for each dimension"};
  options.scale_factor = c.real(2, "scale_factor", 0.0);
  c.text(3, "mode", "");
  options.align_corners = c.flag(4, "align_corners", false);
  options.recompute_scale_factor = c.flag(5, "recompute_scale_factor", false);
  return interpolate(x, options);
}

Results sampled(Call& c) {
  const std::string mode = c.text(2, "mode", "bilinear"), padding = c.text(3, "padding_mode", "zeros");
  const Tensor x = c.tensor(0, "input"), grid = c.tensor(1, "grid");
  if (x.dim() == 5) throw NotExpressible{"volumes"};
  if (mode == "bicubic") throw NotExpressible{"bicubic"};
  GridSampleOptions options;
  options.mode = mode == "nearest" ? InterpolateMode::nearest : InterpolateMode::bilinear;
  options.padding_mode = padding == "zeros"    ? GridPadding::zeros
                         : padding == "border" ? GridPadding::border
                                               : GridPadding::reflection;
  options.align_corners = c.flag(4, "align_corners", false);
  return grid_sample(x, grid, options);
}

}  // namespace

std::vector<Operation> loss_calls() {
  return {
      {"nn.functional.l1_loss",
       [](Call& c) -> Results { return l1_loss(c.tensor(0, "input"), c.tensor(1, "target"), reduction_of(c)); }},
      {"nn.functional.smooth_l1_loss",
       [](Call& c) -> Results {
         return smooth_l1_loss(c.tensor(0, "input"), c.tensor(1, "target"), c.real(-1, "beta", 1.0), reduction_of(c));
       }},
      {"nn.functional.huber_loss",
       [](Call& c) -> Results {
         return huber_loss(c.tensor(0, "input"), c.tensor(1, "target"), c.real(-1, "delta", 1.0), reduction_of(c));
       }},
      {"nn.functional.binary_cross_entropy",
       [](Call& c) -> Results {
         return binary_cross_entropy(c.tensor(0, "input"), c.tensor(1, "target"), c.tensor_or_none(2, "weight"),
                                     reduction_of(c));
       }},
      {"nn.functional.kl_div",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input"), target = c.tensor(1, "target");
         return kl_div(x, target, c.text(-1, "reduction", "mean"), c.flag(-1, "log_target", false));
       }},
      {"nn.functional.margin_ranking_loss",
       [](Call& c) -> Results {
         return margin_ranking_loss(c.tensor(0, "input1"), c.tensor(1, "input2"), c.tensor(2, "target"),
                                    c.real(3, "margin", 0.0), reduction_of(c));
       }},
      {"nn.functional.hinge_embedding_loss",
       [](Call& c) -> Results {
         return hinge_embedding_loss(c.tensor(0, "input"), c.tensor(1, "target"), c.real(2, "margin", 1.0),
                                     reduction_of(c));
       }},
      {"nn.functional.soft_margin_loss",
       [](Call& c) -> Results {
         return soft_margin_loss(c.tensor(0, "input"), c.tensor(1, "target"), reduction_of(c));
       }},
      {"nn.functional.cosine_embedding_loss",
       [](Call& c) -> Results {
         return cosine_embedding_loss(c.tensor(0, "input1"), c.tensor(1, "input2"), c.tensor(2, "target"),
                                      c.real(3, "margin", 0.0), reduction_of(c));
       }},
      {"nn.functional.triplet_margin_loss",
       [](Call& c) -> Results {
         return triplet_margin_loss(c.tensor(0, "anchor"), c.tensor(1, "positive"), c.tensor(2, "negative"),
                                    c.real(-1, "margin", 1.0), c.real(-1, "p", 2.0), c.real(-1, "eps", 1e-6),
                                    c.flag(-1, "swap", false), reduction_of(c));
       }},
      {"nn.functional.gaussian_nll_loss",
       [](Call& c) -> Results {
         return gaussian_nll_loss(c.tensor(0, "input"), c.tensor(1, "target"), c.tensor(2, "var"),
                                  c.real(-1, "eps", 1e-6), reduction_of(c), c.flag(-1, "full", false));
       }},
      {"nn.functional.poisson_nll_loss",
       [](Call& c) -> Results {
         return poisson_nll_loss(c.tensor(0, "input"), c.tensor(1, "target"), c.flag(-1, "log_input", true),
                                 c.real(-1, "eps", 1e-8), reduction_of(c), c.flag(-1, "full", false));
       }},
      {"nn.functional.cosine_similarity",
       [](Call& c) -> Results {
         return cosine_similarity(c.tensor(0, "x1"), c.tensor(1, "x2"), c.integer(2, "dim", 1), c.real(3, "eps", 1e-8));
       }},
      {"nn.functional.pairwise_distance",
       [](Call& c) -> Results {
         return pairwise_distance(c.tensor(0, "x1"), c.tensor(1, "x2"), c.real(2, "p", 2.0), c.real(3, "eps", 1e-6),
                                  c.flag(4, "keepdim", false));
       }},
      {"nn.functional.normalize",
       [](Call& c) -> Results {
         return normalize(c.tensor(0, "input"), c.real(1, "p", 2.0), c.integer(2, "dim", 1), c.real(3, "eps", 1e-12));
       }},
      {"nn.functional.conv1d", convolution_1d},
      {"nn.functional.conv_transpose1d", transposed_1d},
      {"nn.functional.conv_transpose2d", transposed_2d},
      {"nn.functional.max_pool1d",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const std::int64_t kernel = one(c, 1, "kernel_size", 0), stride = one(c, 2, "stride", 0),
                            padding = one(c, 3, "padding", 0), dilation = one(c, 4, "dilation", 1);
         const bool ceil_mode = c.flag(5, "ceil_mode", false);
         if (!c.flag(6, "return_indices", false)) return max_pool1d(x, kernel, stride, padding, dilation, ceil_mode);
         const auto [out, indices] = max_pool1d_with_indices(x, kernel, stride, padding, dilation, ceil_mode);
         return std::vector<Tensor>{out, indices};
       }},
      {"nn.functional.avg_pool1d",
       [](Call& c) -> Results {
         return avg_pool1d(c.tensor(0, "input"), one(c, 1, "kernel_size", 0), one(c, 2, "stride", 0),
                           one(c, 3, "padding", 0), c.flag(4, "ceil_mode", false),
                           c.flag(5, "count_include_pad", true));
       }},
      {"nn.functional.adaptive_avg_pool1d",
       [](Call& c) -> Results { return adaptive_avg_pool1d(c.tensor(0, "input"), one(c, 1, "output_size", 0)); }},
      {"nn.functional.interpolate.nearest", [](Call& c) { return resized(c, InterpolateMode::nearest); }},
      {"nn.functional.interpolate.bilinear", [](Call& c) { return resized(c, InterpolateMode::bilinear); }},
      {"nn.functional.grid_sample", sampled},
  };
}

}  // namespace lockstep::testing
