#include "lockstep/nn/linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/autograd/ops/embedding/embedding.h"
#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

void clear_row(const Tensor& weight, std::int64_t padding_idx, const char* layer) {
  const std::int64_t rows = weight.size(0), row = padding_idx < 0 ? padding_idx + rows : padding_idx;
  LOCKSTEP_CHECK(row >= 0 && row < rows, "[{}] padding_idx {} is outside the {} rows", layer, padding_idx, rows);
  fill_values(lockstep::rows(weight.detach(), row, 1), 0.0);
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, LinearOptions options) : Linear(nullptr, {}, in, out, options) {}

Linear::Linear(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, LinearOptions options)
    : Module(parent, name),
      weight(this, "weight", empty({out, in})),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()) {
  init::layer_default_(weight, bias);
}

Tensor Linear::forward(Tensor x) {
  return function_ ? function_(x, weight, bias) : linear(x, weight, bias);
}

Embedding::Embedding(std::int64_t rows, std::int64_t width, EmbeddingOptions options)
    : Embedding(nullptr, {}, rows, width, options) {}

Embedding::Embedding(Module* parent, std::string_view name, std::int64_t rows, std::int64_t width,
                     EmbeddingOptions options)
    : Module(parent, name), weight(this, "weight", empty({rows, width})), options_(options) {
  init::normal_(weight);
  if (options.padding_idx) clear_row(weight, *options.padding_idx, "nn::Embedding");
}

void Embedding::set_function(Function function) {
  const auto& [padding_idx, max_norm, norm_type, scale_grad_by_freq] = options_;
  LOCKSTEP_CHECK(!function || (!padding_idx && !max_norm && !scale_grad_by_freq),
                 "[nn::Embedding] an embedding with padding_idx, max_norm or scale_grad_by_freq cannot be computed by "
                 "another function; make it without options");
  function_ = std::move(function);
}

Tensor Embedding::forward(Tensor index) {
  if (function_) return function_(weight, index);
  const auto& [padding_idx, max_norm, norm_type, scale_grad_by_freq] = options_;
  return embedding(weight, index,
                   EmbeddingLookup{.padding_idx = padding_idx,
                                   .max_norm = max_norm,
                                   .norm_type = norm_type,
                                   .scale_grad_by_freq = scale_grad_by_freq});
}

EmbeddingBag::EmbeddingBag(std::int64_t rows, std::int64_t width, EmbeddingBagOptions options)
    : EmbeddingBag(nullptr, {}, rows, width, options) {}

EmbeddingBag::EmbeddingBag(Module* parent, std::string_view name, std::int64_t rows, std::int64_t width,
                           EmbeddingBagOptions options)
    : ModuleOf(parent, name), weight(this, "weight", empty({rows, width})), options_(options) {
  init::normal_(weight);
  if (options.padding_idx) clear_row(weight, *options.padding_idx, "nn::EmbeddingBag");
}

Tensor EmbeddingBag::forward(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights) {
  return embedding_bag(weight, index, offsets,
                       {.mode = options_.mode,
                        .padding_idx = options_.padding_idx,
                        .max_norm = options_.max_norm,
                        .norm_type = options_.norm_type,
                        .scale_grad_by_freq = options_.scale_grad_by_freq,
                        .include_last_offset = options_.include_last_offset},
                       per_sample_weights);
}

Bilinear::Bilinear(std::int64_t in1, std::int64_t in2, std::int64_t out, BilinearOptions options)
    : Bilinear(nullptr, {}, in1, in2, out, options) {}

Bilinear::Bilinear(Module* parent, std::string_view name, std::int64_t in1, std::int64_t in2, std::int64_t out,
                   BilinearOptions options)
    : ModuleOf(parent, name),
      weight(this, "weight", empty({out, in1, in2})),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(in1, 1)));
  init::uniform_(weight, -bound, bound);
  if (options.bias) init::uniform_(bias, -bound, bound);
}

Tensor Bilinear::forward(const Tensor& a, const Tensor& b) {
  return bilinear(a, b, weight, bias);
}

}  // namespace lockstep::nn
