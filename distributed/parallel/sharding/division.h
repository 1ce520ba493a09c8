#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/nn/module.h"

namespace lockstep::optim::detail {
class GradientsInParts;
}

namespace lockstep::distributed {

class ParameterShards;

/// Parameters of one dtype on one device that travel together. Their elements, one after the other, are numbered
/// through and cut into one block for each rank, of equal sizes but for what the last ones lack.
struct Flat {
  std::vector<std::size_t> members;   ///< places in Division::parameters
  std::vector<std::int64_t> offsets;  ///< where each begins, and where the last one ends
  std::int64_t block = 0;             ///< elements a rank: the number of elements / ranks, rounded up
  TensorOptions options;
  Tensor shard;     ///< [block]: this rank's values; where parameters are whole, undefined
  Tensor gradient;  ///< [block]: this rank's part of the reduced gradients; undefined: none
  OperationLabel label;

  std::int64_t elements() const { return offsets.back(); }
};

/// Parameters that are gathered together, those of a block of the model. Unit 0 has those of no block. Of a part of a
/// model (ModelPart), whose micro-batches go forward and backward in turn, units are flats, and stay for a step.
struct Unit {
  std::string name;              ///< empty: unit 0
  nn::Module* module = nullptr;  ///< null: unit 0, or of a part of a model
  std::vector<std::size_t> flats;
};

/// Note [Divided parameters]
/// ZeRO-2 and ZeRO-3 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020;
/// Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023). Who keeps which
/// elements is settled once, when a step is made, and the same for values, gradients and optimizer state: a Division.
/// Three things work on it and know nothing of each other:
///
/// - sharded_reduction() is a policy of the Reducer whose buckets are the division's flats: it leaves each rank its
///   block of a reduced gradient and no parameter a gradient;
/// - ParameterShards (ZeRO-3) keeps the blocks of the values, and makes the parameters whole where they are read;
/// - ZeroRedundancyOptimizer updates this rank's elements.
///
/// Where the ranks hold a part of a model, a parameter that other parts have too is alone in its flat. One part reduces
/// its gradient, and each of its ranks gives its block to the rank with the same number in the others.
struct Division : std::enable_shared_from_this<Division> {
  /// One that lives and has some of a module's parameters; else null.
  static std::shared_ptr<Division> of(const nn::Module& module);
  /// Throws Error while there is one: it would take away the gradients of another step.
  static void check_undivided(const nn::Module& module);
  /// The first of a module; see check_undivided().
  static std::shared_ptr<Division> make(nn::Module& module, const TrainingStepOptions& options, int rank, int world);
  Division(nn::Module& module, const TrainingStepOptions& options, int rank, int world);
  ~Division();

  int rank, world;
  bool values_too;     ///< ZeRO-3
  DType gather_dtype;  ///< of float32 values, when a step gathers them
  int within;          ///< ranks that gather values among themselves in a step
  bool of_part;        ///< of a model, which others complete
  /// The reduced ones, as reduced_parameters() orders them, the trained ones that another part reduces, the others.
  std::vector<nn::NamedTensor> parameters;
  std::size_t trained = 0;
  std::vector<Flat> flats;  ///< likewise; the first ones in the order in which their gradients travel
  std::size_t reduced_flats = 0, trained_flats = 0;
  std::vector<Unit> units;
  std::vector<bool> has_gradient;         ///< by trained parameter
  int optimizers = 0;                     ///< that know of the division, and live
  std::int64_t updates = 0;               ///< steps of optimizers
  std::weak_ptr<ParameterShards> shards;  ///< while there are some

  bool has(const Tensor& parameter) const;
  /// This rank's elements of a flat.
  std::pair<std::int64_t, std::int64_t> own_range(const Flat& flat) const;
  void clear_gradients();
  /// Those of some parameters, as Module::zero_grad(); of others that lie in the same flats they stay.
  void clear_gradients_of(const std::vector<Tensor>& some, bool set_to_none);
  /// This rank's block of the gradient of a parameter that other parts have too; undefined: it has none.
  Tensor shared_gradient(const Tensor& parameter) const;
  void set_shared_gradient(const Tensor& parameter, const Tensor& block);

 private:
  std::unique_ptr<optim::detail::GradientsInParts> gradients_elsewhere_;
  std::size_t place_of_shared(const Tensor& parameter) const;
  void add_buckets(std::size_t reduced, const TrainingStepOptions& options);
  void add_flats(std::size_t unit, std::vector<std::size_t> members);
  void add_flat(std::size_t unit, const std::vector<std::size_t>& members);
  void find_units(nn::Module& module, const std::vector<std::string>& names);
};

/// `size` elements from `begin` on of a contiguous tensor, seen as one row.
Tensor elements_of(const Tensor& tensor, std::int64_t begin, std::int64_t size);

}  // namespace lockstep::distributed
