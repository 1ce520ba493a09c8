#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/autograd/ops/embedding/embedding.h"
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

/// Options of EmbeddingBag.
struct EmbeddingBagOptions {
  BagMode mode = BagMode::mean;                            ///< how the rows of a bag are joined
  std::optional<std::int64_t> padding_idx = std::nullopt;  ///< this row starts at 0 and counts in no bag
  std::optional<double> max_norm = std::nullopt;           ///< rows looked up are first scaled down to this norm
  double norm_type = 2.0;                                  ///< the power of that norm
  bool scale_grad_by_freq = false;                         ///< divide gradients by how often a row occurs
  bool include_last_offset = false;                        ///< the offsets end with the number of indices
};

/// Sums, means or maxima of rows of weight [rows, width]: bags of indices to [bags, width]; see embedding_bag(). Starts
/// from a standard normal distribution.
class EmbeddingBag : public ModuleOf<EmbeddingBag> {
 public:
  EmbeddingBag(std::int64_t rows, std::int64_t width, EmbeddingBagOptions options = {});
  EmbeddingBag(Module* parent, std::string_view name, std::int64_t rows, std::int64_t width,
               EmbeddingBagOptions options = {});
  /// Bags that are rows of index [bags, n], or that begin at `offsets` [bags] in index [n].
  Tensor forward(const Tensor& index, const Tensor& offsets = {}, const Tensor& per_sample_weights = {});

  Parameter weight;  ///< [rows, width]

 private:
  EmbeddingBagOptions options_;
};

/// Options of Bilinear.
struct BilinearOptions {
  bool bias = true;  ///< add a bias for each output
};

/// y_k = a^T W_k b + bias_k of a [*, in1] and b [*, in2]; see bilinear(). Parameters weight [out, in1, in2] and bias
/// [out], drawn as PyTorch's.
class Bilinear : public ModuleOf<Bilinear> {
 public:
  Bilinear(std::int64_t in1, std::int64_t in2, std::int64_t out, BilinearOptions options = {});
  Bilinear(Module* parent, std::string_view name, std::int64_t in1, std::int64_t in2, std::int64_t out,
           BilinearOptions options = {});
  Tensor forward(const Tensor& a, const Tensor& b);  ///< y [*, out]

  Parameter weight;  ///< [out, in1, in2]
  Parameter bias;    ///< [out]; undefined without bias
};

}  // namespace lockstep::nn
