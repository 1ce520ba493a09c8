// What nn.functional has: layers, pools, losses.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

Reduction reduction_of(Call& c, int position) {
  const std::string word = c.text(position, "reduction", "mean");
  if (word == "mean") return Reduction::mean;
  if (word == "sum") return Reduction::sum;
  if (word == "none") return Reduction::none;
  throw NotExpressible{"there is no reduction " + word};
}

Results convolution(Call& c) {
  Conv2dOptions options;
  options.stride = c.size2d(3, "stride", 1);
  const bool named = c.given(4, "padding") && c.json(4, "padding").is_string();
  options.padding = !named ? c.size2d(4, "padding", 0) : c.text(4, "padding", "valid") == "same" ? kSame : kValid;
  options.dilation = c.size2d(5, "dilation", 1);
  options.groups = c.integer(6, "groups", 1);
  return conv2d(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"), options);
}

Results batch_normalised(Call& c) {
  BatchNormOptions options;
  options.weight = c.tensor_or_none(3, "weight");
  options.bias = c.tensor_or_none(4, "bias");
  options.training = c.flag(5, "training", false);
  options.momentum = c.real(6, "momentum", 0.1);
  options.eps = c.real(7, "eps", 1e-5);
  return batch_norm(c.tensor(0, "input"), c.tensor_or_none(1, "running_mean"), c.tensor_or_none(2, "running_var"),
                    options);
}

Results layer_normalised(Call& c) {
  LayerNormOptions options;
  options.weight = c.tensor_or_none(2, "weight");
  options.bias = c.tensor_or_none(3, "bias");
  options.eps = c.real(4, "eps", 1e-5);
  return layer_norm(c.tensor(0, "input"), c.shape(1, "normalized_shape"), options);
}

Results root_mean_square_normalised(Call& c) {
  const Tensor x = c.tensor(0, "input"), weight = c.tensor_or_none(2, "weight");
  const Shape sizes = c.shape(1, "normalized_shape");
  const std::optional<double> eps = c.real_or_none(3, "eps");
  return eps ? rms_norm(x, sizes, weight, *eps) : rms_norm(x, sizes, weight);
}

Results attention(Call& c) {
  AttentionOptions options;
  options.attn_mask = c.tensor_or_none(3, "attn_mask");
  options.dropout_p = c.real(4, "dropout_p", 0.0);
  options.is_causal = c.flag(5, "is_causal", false);
  options.scale = c.real_or_none(-1, "scale");
  options.enable_gqa = c.flag(-1, "enable_gqa", false);
  return scaled_dot_product_attention(c.tensor(0, "query"), c.tensor(1, "key"), c.tensor(2, "value"), options);
}

Results max_pooled(Call& c) {
  MaxPool2dOptions options;
  options.stride = c.size2d(2, "stride", 0);
  options.padding = c.size2d(3, "padding", 0);
  options.dilation = c.size2d(4, "dilation", 1);
  options.ceil_mode = c.flag(5, "ceil_mode", false);
  const Tensor x = c.tensor(0, "input");
  const Size2d kernel = c.size2d(1, "kernel_size", 0);
  if (!c.flag(6, "return_indices", false)) return max_pool2d(x, kernel, options);
  const auto [out, indices] = max_pool2d_with_indices(x, kernel, options);
  return std::vector<Tensor>{out, indices};
}

Results avg_pooled(Call& c) {
  AvgPool2dOptions options;
  options.stride = c.size2d(2, "stride", 0);
  options.padding = c.size2d(3, "padding", 0);
  options.ceil_mode = c.flag(4, "ceil_mode", false);
  options.count_include_pad = c.flag(5, "count_include_pad", true);
  options.divisor_override = c.integer(6, "divisor_override", 0);
  return avg_pool2d(c.tensor(0, "input"), c.size2d(1, "kernel_size", 0), options);
}

Results cross(Call& c) {
  CrossEntropyOptions options;
  options.weight = c.tensor_or_none(2, "weight");
  options.ignore_index = c.integer(4, "ignore_index", -100);
  options.reduction = reduction_of(c, 6);
  options.label_smoothing = c.real(7, "label_smoothing", 0.0);
  return cross_entropy(c.tensor(0, "input"), c.tensor(1, "target"), options);
}

Results negative_log_likelihood(Call& c) {
  NllLossOptions options;
  options.weight = c.tensor_or_none(2, "weight");
  options.ignore_index = c.integer(4, "ignore_index", -100);
  options.reduction = reduction_of(c, 6);
  return nll_loss(c.tensor(0, "input"), c.tensor(1, "target"), options);
}

Results binary_cross(Call& c) {
  BceWithLogitsOptions options;
  options.weight = c.tensor_or_none(2, "weight");
  options.reduction = reduction_of(c, 5);
  options.pos_weight = c.tensor_or_none(6, "pos_weight");
  return binary_cross_entropy_with_logits(c.tensor(0, "input"), c.tensor(1, "target"), options);
}

}  // namespace

std::vector<Operation> layer_calls() {
  return {
      {"nn.functional.linear",
       [](Call& c) -> Results {
         return linear(c.tensor(0, "input"), c.tensor(1, "weight"), c.tensor_or_none(2, "bias"));
       }},
      {"nn.functional.conv2d", convolution},
      {"nn.functional.batch_norm", batch_normalised},
      {"nn.functional.layer_norm", layer_normalised},
      {"nn.functional.group_norm",
       [](Call& c) -> Results {
         LayerNormOptions options;
         options.weight = c.tensor_or_none(2, "weight");
         options.bias = c.tensor_or_none(3, "bias");
         options.eps = c.real(4, "eps", 1e-5);
         return group_norm(c.tensor(0, "input"), c.integer(1, "num_groups"), options);
       }},
      {"nn.functional.rms_norm", root_mean_square_normalised},
      {"nn.functional.scaled_dot_product_attention", attention},
      {"nn.functional.max_pool2d", max_pooled},
      {"nn.functional.avg_pool2d", avg_pooled},
      {"nn.functional.adaptive_avg_pool2d",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         if (!c.is_list(1, "output_size")) return adaptive_avg_pool2d(x, c.size2d(1, "output_size", 0));
         const Call::Json& sizes = c.json(1, "output_size");  // None: x's own
         if (sizes.size() != 2) throw NotExpressible{"output_size has a height and a width"};
         return adaptive_avg_pool2d(x, {sizes[0].is_null() ? x.size(-2) : sizes[0].get<std::int64_t>(),
                                        sizes[1].is_null() ? x.size(-1) : sizes[1].get<std::int64_t>()});
       }},
      {"nn.functional.cross_entropy", cross},
      {"nn.functional.nll_loss", negative_log_likelihood},
      {"nn.functional.binary_cross_entropy_with_logits", binary_cross},
      {"nn.functional.mse_loss",
       [](Call& c) -> Results {
         return mse_loss(c.tensor(0, "input"), c.tensor(1, "target"), {.reduction = reduction_of(c, 4)});
       }},
      {"nn.functional.embedding",
       [](Call& c) -> Results {
         EmbeddingLookup options;
         options.padding_idx = c.integer_or_none(2, "padding_idx");
         options.max_norm = c.real_or_none(3, "max_norm");
         options.norm_type = c.real(4, "norm_type", 2.0);
         options.scale_grad_by_freq = c.flag(5, "scale_grad_by_freq", false);
         return embedding(c.tensor(0, "weight"), c.tensor(1, "input"), options);
       }},
      {"nn.functional.dropout",
       [](Call& c) -> Results {
         return dropout(c.tensor(0, "input"), c.real(1, "p", 0.5), c.flag(2, "training", true));
       }},
      {"nn.functional.dropout2d",
       [](Call& c) -> Results {
         return dropout2d(c.tensor(0, "input"), c.real(1, "p", 0.5), c.flag(2, "training", true));
       }},
  };
}

}  // namespace lockstep::testing
