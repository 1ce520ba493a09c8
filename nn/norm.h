#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/autograd/ops/batch_norm/batch_norm.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of BatchNorm1d and BatchNorm2d.
struct BatchNormOptions {
  double eps = 1e-5;                     ///< added to the variance
  std::optional<double> momentum = 0.1;  ///< share of the new statistics; nullopt: the plain mean over all batches
  bool affine = true;                    ///< weight and bias
  bool track_running_stats = true;       ///< without, evaluation uses the batch's statistics too
};

/// What BatchNorm1d and BatchNorm2d share; see lockstep::batch_norm. Parameters weight and bias, buffers running_mean,
/// running_var and num_batches_tracked, all under PyTorch's names.
class BatchNorm : public Module {
 public:
  Tensor forward(Tensor x) override;

  /// Takes one more batch into the running statistics: mean and *unbiased* variance, [channels] each. forward() does so
  /// in training; for steps that combine the statistics of several parts first (DeferredStatistics). Nothing happens
  /// without running statistics.
  void track(const Tensor& mean, const Tensor& variance);
  /// Running mean 0, variance 1 and no batch seen, as at first. Nothing happens without running statistics.
  void reset_running_stats();

  /// Computes what lockstep::batch_norm computes in training, from the same arguments, but with statistics of more than
  /// this input: those of other processes too. Null: lockstep::batch_norm.
  using TrainingFunction = std::function<Tensor(const Tensor& input, const Tensor& running_mean,
                                                const Tensor& running_var, const lockstep::BatchNormOptions& options)>;
  /// Replaces what training computes; see TrainingFunction.
  void set_training_function(TrainingFunction function) { training_function_ = std::move(function); }
  /// A function other than lockstep::batch_norm is set.
  bool has_training_function() const { return static_cast<bool>(training_function_); }

  Parameter weight;            ///< [channels]; undefined without affine
  Parameter bias;              ///< [channels]; undefined without affine
  Buffer running_mean;         ///< [channels]; undefined without track_running_stats
  Buffer running_var;          ///< [channels], unbiased; undefined without track_running_stats
  Buffer num_batches_tracked;  ///< one int64 element: batches seen in training

 protected:
  BatchNorm(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options);
  /// Throws Error for an input of the wrong number of dimensions.
  virtual void check_input(const Tensor& x) const = 0;

 private:
  double momentum() const;
  void count_batch();

  BatchNormOptions options_;
  TrainingFunction training_function_;
};

/// Over [n, c] or [n, c, length].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(std::int64_t channels, BatchNormOptions options = {});
  BatchNorm1d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options = {});

 private:
  void check_input(const Tensor& x) const override;
};

/// Over [n, c, h, w].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {});
  BatchNorm2d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options = {});

 private:
  void check_input(const Tensor& x) const override;
};

/// Over [n, c, d, h, w].
class BatchNorm3d : public BatchNorm {
 public:
  explicit BatchNorm3d(std::int64_t channels, BatchNormOptions options = {});
  BatchNorm3d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options = {});

 private:
  void check_input(const Tensor& x) const override;
};

/// A norm of x with parameters, of which either may be undefined.
using NormFunction = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;
/// Computes a layer's `norm`, for layers that are divided over ranks.
using DividedNormFunction =
    std::function<Tensor(const NormFunction& norm, const Tensor& x, const Tensor& weight, const Tensor& bias)>;

/// Options of LayerNorm.
struct LayerNormOptions {
  double eps = 1e-5;   ///< added to the variance
  bool affine = true;  ///< weight and bias
  bool bias = true;    ///< with affine: bias too
};

/// Over the trailing dimensions `shape`; see lockstep::layer_norm.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(Shape shape, LayerNormOptions options = {});
  template <std::size_t N>
  explicit LayerNorm(const std::int64_t (&shape)[N], LayerNormOptions options = {})
      : LayerNorm(Shape(std::span<const std::int64_t>(shape)), options) {}  ///< `LayerNorm({64})`
  LayerNorm(Module* parent, std::string_view name, Shape shape, LayerNormOptions options = {});
  Tensor forward(Tensor x) override;
  /// From now on forward() calls this, which calls the norm that it is given. Null: the norm itself.
  void set_function(DividedNormFunction function) { function_ = std::move(function); }

  Parameter weight;  ///< of shape `shape`; undefined without affine
  Parameter bias;    ///< of shape `shape`; undefined without affine or bias

 private:
  Shape shape_;
  double eps_;
  DividedNormFunction function_;
};

/// Options of RMSNorm.
struct RMSNormOptions {
  std::optional<double> eps = std::nullopt;  ///< added to the mean of squares; see lockstep::rms_norm
  bool affine = true;                        ///< weight
};

/// Over the trailing dimensions `shape`; see lockstep::rms_norm.
class RMSNorm : public Module {
 public:
  explicit RMSNorm(Shape shape, RMSNormOptions options = {});
  template <std::size_t N>
  explicit RMSNorm(const std::int64_t (&shape)[N], RMSNormOptions options = {})
      : RMSNorm(Shape(std::span<const std::int64_t>(shape)), options) {}  ///< `RMSNorm({64})`
  RMSNorm(Module* parent, std::string_view name, Shape shape, RMSNormOptions options = {});
  Tensor forward(Tensor x) override;
  /// From now on forward() calls this, which calls the norm that it is given. Null: the norm itself.
  void set_function(DividedNormFunction function) { function_ = std::move(function); }

  Parameter weight;  ///< of shape `shape`; undefined without affine

 private:
  Shape shape_;
  std::optional<double> eps_;
  DividedNormFunction function_;
};

/// Options of GroupNorm.
struct GroupNormOptions {
  double eps = 1e-5;   ///< added to the variance
  bool affine = true;  ///< weight and bias
};

/// Over groups of channels of [N, C, ...]; see lockstep::group_norm.
class GroupNorm : public Module {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions options = {});
  GroupNorm(Module* parent, std::string_view name, std::int64_t groups, std::int64_t channels,
            GroupNormOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [channels]; undefined without affine
  Parameter bias;    ///< [channels]; undefined without affine

 private:
  std::int64_t groups_;
  double eps_;
};

/// Options of InstanceNorm.
struct InstanceNormOptions {
  double eps = 1e-5;    ///< added to the variance
  bool affine = false;  ///< weight and bias
};

/// Each channel of each sample of [N, C, ...] over its positions: PyTorch's InstanceNorm1d and InstanceNorm2d without
/// running statistics. Ulyanov, Vedaldi and Lempitsky, "Instance normalization" (2016); see lockstep::group_norm.
class InstanceNorm : public Module {
 public:
  explicit InstanceNorm(std::int64_t channels, InstanceNormOptions options = {});
  InstanceNorm(Module* parent, std::string_view name, std::int64_t channels, InstanceNormOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [channels]; undefined without affine
  Parameter bias;    ///< [channels]; undefined without affine

 private:
  std::int64_t channels_;
  double eps_;
};
using InstanceNorm1d = InstanceNorm;  ///< of [N, C, length]
using InstanceNorm2d = InstanceNorm;  ///< of [N, C, h, w]
using InstanceNorm3d = InstanceNorm;  ///< of [N, C, d, h, w]

/// Channels divided by what their neighbours make up; see local_response_norm().
class LocalResponseNorm : public Module {
 public:
  explicit LocalResponseNorm(std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1.0)
      : LocalResponseNorm(nullptr, {}, size, alpha, beta, k) {}
  LocalResponseNorm(Module* parent, std::string_view name, std::int64_t size, double alpha = 1e-4, double beta = 0.75,
                    double k = 1.0)
      : Module(parent, name), size_(size), alpha_(alpha), beta_(beta), k_(k) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t size_;
  double alpha_, beta_, k_;
};

}  // namespace lockstep::nn
