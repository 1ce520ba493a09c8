// Volumes, and what came beside them: the adaptive maxima, and bags of rows.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

Size3d size3d(Call& c, int position, const char* name, Size3d otherwise) {
  if (!c.given(position, name)) return otherwise;
  const Shape sizes = c.shape(position, name);
  if (sizes.dim() == 0) return otherwise;
  if (sizes.dim() == 1) return sizes[0];
  if (sizes.dim() != 3) throw NotExpressible{std::string(name) + " is neither one number nor three"};
  return {sizes[0], sizes[1], sizes[2]};
}

Results convolution(Call& c) {
  Conv3dOptions options;
  options.stride = size3d(c, 3, "stride", 1);
  const bool named = c.given(4, "padding") && c.json(4, "padding").is_string();
  if (named && c.text(4, "padding", "") != "valid") throw NotExpressible{"volumes have no padding \"same\""};
  if (!named) options.padding = size3d(c, 4, "padding", 0);
  options.dilation = size3d(c, 5, "dilation", 1);
  options.groups = c.integer(6, "groups", 1);
  return conv3d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results transposed(Call& c) {
  ConvTranspose3dOptions options;
  options.stride = size3d(c, 3, "stride", 1);
  options.padding = size3d(c, 4, "padding", 0);
  options.output_padding = size3d(c, 5, "output_padding", 0);
  options.groups = c.integer(6, "groups", 1);
  options.dilation = size3d(c, 7, "dilation", 1);
  return conv_transpose3d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results max_pooled(Call& c) {
  if (c.flag(6, "return_indices", false)) throw NotExpressible{"max_pool3d gives no indices"};
  return max_pool3d(c.tensor(0, "input"), size3d(c, 1, "kernel_size", 0),
                    {.stride = size3d(c, 2, "stride", 0),
                     .padding = size3d(c, 3, "padding", 0),
                     .dilation = size3d(c, 4, "dilation", 1),
                     .ceil_mode = c.flag(5, "ceil_mode", false)});
}

Results avg_pooled(Call& c) {
  return avg_pool3d(c.tensor(0, "input"), size3d(c, 1, "kernel_size", 0),
                    {.stride = size3d(c, 2, "stride", 0),
                     .padding = size3d(c, 3, "padding", 0),
                     .ceil_mode = c.flag(4, "ceil_mode", false),
                     .count_include_pad = c.flag(5, "count_include_pad", true)});
}

/// Sizes of a result, of which None stands for the input's.
Shape output_size(Call& c, const Tensor& x, int dims) {
  const auto& given = c.json(1, "output_size");
  if (given.is_array() && given.size() != static_cast<std::size_t>(dims))
    throw NotExpressible{"a size for each dimension"};
  Shape sizes;
  for (int d = 0; d < dims; ++d) {
    const auto& entry = given.is_array() ? given.at(static_cast<std::size_t>(d)) : given;
    sizes.push_back(entry.is_null() ? x.size(d - dims) : entry.get<std::int64_t>());
  }
  return sizes;
}

Results bag(Call& c) {
  const std::string mode = c.text(-1, "mode", "mean");
  return embedding_bag(c.tensor(0, "weight"), c.tensor(1, "input"), c.tensor_or_none(2, "offsets"),
                       {.mode = mode == "sum" ? BagMode::sum : (mode == "max" ? BagMode::max : BagMode::mean),
                        .padding_idx = c.integer_or_none(-1, "padding_idx"),
                        .max_norm = c.real_or_none(-1, "max_norm"),
                        .norm_type = c.real(-1, "norm_type", 2.0),
                        .scale_grad_by_freq = c.flag(-1, "scale_grad_by_freq", false),
                        .include_last_offset = c.flag(-1, "include_last_offset", false)},
                       c.tensor_or_none(-1, "per_sample_weights"));
}

}  // namespace

std::vector<Operation> volume_calls() {
  return {
      {"nn.functional.conv3d", convolution},
      {"nn.functional.conv_transpose3d", transposed},
      {"nn.functional.max_pool3d", max_pooled},
      {"nn.functional.avg_pool3d", avg_pooled},
      {"nn.functional.adaptive_avg_pool3d",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const Shape sizes = output_size(c, x, 3);
         return adaptive_avg_pool3d(x, {sizes[0], sizes[1], sizes[2]});
       }},
      {"nn.functional.adaptive_max_pool1d",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return adaptive_max_pool1d(x, output_size(c, x, 1)[0]);
       }},
      {"nn.functional.adaptive_max_pool2d",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const Shape sizes = output_size(c, x, 2);
         return adaptive_max_pool2d(x, {sizes[0], sizes[1]});
       }},
      {"nn.functional.embedding_bag", bag},
  };
}

}  // namespace lockstep::testing
