#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/nn/module.h"

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

/// Parameters that are gathered together, those of a block of the model. Unit 0 has those of no block.
struct Unit {
  std::string name;
  nn::Module* module = nullptr;  ///< null: unit 0
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
struct Division {
  Division(nn::Module& module, const TrainingStepOptions& options, int rank, int world);

  int rank, world;
  bool values_too;                          ///< ZeRO-3
  DType gather_dtype;                       ///< of float32 values, when a step gathers them
  std::vector<nn::NamedTensor> parameters;  ///< the trained ones, as trained_parameters() orders them, then the others
  std::size_t trained = 0;
  std::vector<Flat> flats;  ///< of trained parameters, in the order in which their gradients travel, then of the others
  std::size_t trained_flats = 0;
  std::vector<Unit> units;
  std::vector<bool> has_gradient;     ///< by trained parameter
  bool has_optimizer = false;         ///< one that knows of the division
  ParameterShards* shards = nullptr;  ///< while there are some

  /// This rank's elements of a flat.
  std::pair<std::int64_t, std::int64_t> own_range(const Flat& flat) const;
  void clear_gradients();

 private:
  void add_flats(std::size_t unit, std::vector<std::size_t> members);
  void add_flat(std::size_t unit, const std::vector<std::size_t>& members);
  void find_units(nn::Module& module, const std::vector<std::string>& names);
};

/// `size` elements from `begin` on of a contiguous tensor, seen as one row.
Tensor elements_of(const Tensor& tensor, std::int64_t begin, std::int64_t size);

}  // namespace lockstep::distributed
