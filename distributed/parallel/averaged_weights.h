#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/schedule.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::distributed {

class ParameterShards;

/// Options of AveragedWeights.
struct AveragedWeightsOptions {
  /// The module's buffers are averaged too, those of batch norms for instance, which update_bn() computes otherwise.
  /// Buffers of integers, which count, have the values that they had at the last update().
  bool use_buffers = false;
};

/// Note [Averaged weights]
/// A moving average of a model's parameters, which is evaluated and kept instead of the last ones: torch's
/// AveragedModel with get_ema_multi_avg_fn() or, with `equal`, get_swa_multi_avg_fn().
///
///   AveragedWeights average(model, 0.999);
///   for (...) {
///     step(batch, f);
///     optimizer.step();
///     average.update();
///   }
///   {
///     const auto held = average.hold();  // the model's parameters are the averages meanwhile
///     evaluate(model, ...);
///     nn::save(model, "averaged.safetensors");
///   }
///
/// In one process, and on all ranks alike: each averages what it has of the parameters, so that with divided ones
/// (TrainingStepOptions::zero = 3) it keeps its share of the averages too, and of a model that TensorParallel and
/// PipelineParallel have divided its part. The averages have the same bits however the model is divided, if the
/// parameters have. They are float32 for half types, else of the parameters' dtype, and lie where these do. Buffers are
/// the model's own, unless the option `use_buffers` is set; then they are treated as parameters are, on each rank those
/// that it has there. While they are held evaluate(), whole_parameters(), MeshModel::whole() and whatever else reads
/// the model sees the averages; it must not be trained.
class AveragedWeights {
 public:
  /// Of the parameters that require gradients now. a: the average, p: a parameter. The first update() takes p, later
  /// ones a + (1 - decay) (p - a). The module, and a step that divides it, must exist and outlive this object. Throws
  /// Error for a decay outside of [0, 1].
  AveragedWeights(nn::Module& module, double decay, AveragedWeightsOptions options = {});
  /// The same with a decay for each update: that of update number n, from 1, is decay(n), and of number 0 is 0. Such as
  /// `[](std::int64_t n) { return std::min(0.9999, (1.0 + n) / (10.0 + n)); }`.
  AveragedWeights(nn::Module& module, optim::Schedule decay, AveragedWeightsOptions options = {});
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

  /// The mean of all values that were updated with: the decay of stochastic weight averaging.
  static optim::Schedule equal();

  /// After each step of the optimizer. Throws Error while they are held, and for a decay outside of [0, 1].
  void update();
  std::int64_t updates() const { return updates_; }  ///< how many there were

  /// While it lives, the parameters have the averages' values; at its end those that they had before: what was written
  /// to them meanwhile, by a step of training or from a checkpoint, is lost, which a warning says. Parameters that
  /// whole_parameters() holds at its end have them when that lets go.
  class [[nodiscard]] Held {
   public:
    explicit Held(AveragedWeights& owner);
    Held(Held&& other) noexcept;
    Held& operator=(Held&&) = delete;
    ~Held();

   private:
    AveragedWeights* owner_;
  };
  /// Needs memory for this rank's parameters once more; without it, this throws and nothing has changed. Between steps,
  /// on all ranks alike; throws Error while they are held, and while whole_parameters() are.
  Held hold();

  /// The averages, whole, in memory of their own, and their number of updates, for nn::TrainingState::tensors. A
  /// collective where a step divides the parameters, by which all ranks get them. Throws Error for a model that
  /// TensorParallel or PipelineParallel have divided, whose averages MeshModel::whole() gives while they are held.
  std::vector<nn::NamedTensor> state();
  /// What state() gave, from a checkpoint, of which each rank reads its share:
  /// `average.load(nn::SafetensorsFile(path))`. Throws Error for what is missing or of another shape or dtype, and as
  /// state(); nothing has changed then.
  void load(const nn::SafetensorsFile& file);

 private:
  struct Piece {
    std::size_t parameter;  // or buffer
    std::int64_t begin;     // its first element
    Tensor share;           // this rank's of a divided parameter; else undefined
    Tensor average;         // of as many elements
    Tensor kept;            // the parameter's values while the average is held
    std::uint64_t written;  // version of the parameter's memory with the average
  };

  void add(std::size_t parameter, std::int64_t begin, const Tensor& share);
  Tensor values_of(const Piece& piece) const;
  void write_averages();
  bool was_written(const Piece& piece) const;
  void put_back();
  void check_not_held(const char* what) const;
  void check_whole(const char* what) const;

  optim::Schedule decay_;
  std::shared_ptr<ParameterShards> shards_;  // null: parameters are here, whole or in parts
  std::vector<nn::NamedTensor> parameters_;  // and buffers that are averaged, from first_buffer_ on
  std::size_t first_buffer_ = 0;
  std::vector<Piece> pieces_;
  std::int64_t updates_ = 0;
  bool held_ = false;
};

}  // namespace lockstep::distributed
