#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of Linear.
struct LinearOptions {
  bool bias = true;  ///< add a bias for each output
};

/// y = x * weight^T + bias: [*, in] to [*, out]. Parameters weight [out, in] and bias [out], drawn as PyTorch's.
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {});
  Linear(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, LinearOptions options = {});
  Tensor forward(Tensor x) override;

  /// Computes y from x, weight and bias.
  using Function = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;
  /// From now on forward() calls this instead of linear(): for layers that are divided over ranks. Null: linear().
  void set_function(Function function) { function_ = std::move(function); }

  Parameter weight;  ///< [out, in]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  Function function_;
};

/// Options of Embedding.
struct EmbeddingOptions {
  std::optional<std::int64_t> padding_idx = std::nullopt;  ///< this row starts at 0 and gets no gradient
  std::optional<double> max_norm = std::nullopt;           ///< rows looked up are first scaled down to this norm
  double norm_type = 2.0;                                  ///< the power of that norm
  bool scale_grad_by_freq = false;                         ///< divide gradients by how often a row occurs in the index
};

/// Rows of weight [rows, width] for an index tensor (int64 or int32) of any shape: [*] to [*, width]. Starts from a
/// standard normal distribution.
class Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width, EmbeddingOptions options = {});
  Embedding(Module* parent, std::string_view name, std::int64_t rows, std::int64_t width,
            EmbeddingOptions options = {});
  Tensor forward(Tensor index) override;

  /// Looks up rows of `weight`.
  using Function = std::function<Tensor(const Tensor& weight, const Tensor& index)>;
  /// As Linear::set_function(). Throws Error for an embedding with options, which such a function does not know.
  void set_function(Function function);

  Parameter weight;  ///< [rows, width]

 private:
  Function function_;
  EmbeddingOptions options_;
};

}  // namespace lockstep::nn
