#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::distributed {

/// Note [Sharded optimizer]
/// An optimizer whose state is divided over the ranks of a group: ZeRO-1 (Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models", 2020). Gradients are the same on every rank, as
/// DistributedDataParallel leaves them; each rank updates its share of all elements with an ordinary optimizer, and the
/// new values are gathered. Elements are divided evenly, whatever the sizes of the parameters, in chunks, so that a
/// step needs no more memory besides than a chunk. An element's update depends on nothing but its own gradient and
/// state, so the weights have the same bits as with the undivided optimizer.
///
/// step() is a collective; set_lr() and set_momentum() must do the same on every rank. The state is whole only after
/// consolidate(), on rank 0, where it is like that of an undivided optimizer: a checkpoint says nothing about who saved
/// it, and can be loaded by any number of ranks, with and without this class.
class ZeroRedundancyOptimizer final : public optim::Optimizer {
 public:
  /// Makes the optimizer of this rank's share.
  using Factory = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor> parameters)>;

  /// The same parameters, in the same order, on every rank, contiguous; throws Error if their sizes differ.
  ZeroRedundancyOptimizer(std::vector<Tensor> parameters, ProcessGroupPtr group, const Factory& factory,
                          std::size_t chunk_bytes = std::size_t{25} << 20);

  void step() override;
  void prepare_step() override;

  double lr() const override { return local_->lr(); }
  void set_lr(double lr) override { local_->set_lr(lr); }
  double momentum() const override { return local_->momentum(); }
  void set_momentum(double value) override { local_->set_momentum(value); }
  /// That of the optimizer inside.
  const char* name() const override { return local_->name(); }

  /// A collective: brings the state together on rank 0, until the next step.
  void consolidate();
  /// On rank 0, after consolidate(); otherwise throws Error.
  optim::OptimizerState state() const override;
  /// Every rank gives the whole state, and keeps its share.
  void load_state(const optim::OptimizerState& state) override;

  /// The optimizer of this rank's share.
  const optim::Optimizer& local() const { return *local_; }

 private:
  /// Elements of a group that are gathered together: [begin, begin + size), `block` for each rank.
  struct Chunk {
    std::int64_t begin;
    std::int64_t size;
    std::int64_t block;
  };
  /// Parameters of one dtype and device, their elements numbered through.
  struct Group {
    DType dtype;
    Device device;
    std::vector<std::size_t> members;
    std::vector<std::int64_t> offsets;  // one more than members
    std::vector<Chunk> chunks;
  };
  /// A part of a parameter: `size` elements from `begin`, at `at` of its group's numbering.
  struct Piece {
    std::size_t parameter;
    std::int64_t begin;
    std::int64_t size;
    std::int64_t at;
  };

  void scalars(std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  void divide(std::size_t chunk_bytes);
  static std::vector<Piece> pieces_in(const Group& group, std::int64_t begin, std::int64_t end);
  std::pair<std::int64_t, std::int64_t> own_range(const Chunk& chunk) const;
  void lend();
  void gather(const Group& group);
  std::vector<std::string> state_names() const;

  ProcessGroupPtr group_;
  std::vector<Group> groups_;
  std::vector<Piece> own_;      // in the order of groups and chunks; local_'s parameters
  std::vector<Tensor> shares_;  // leaves that stand for own_; one that is empty if there are none
  std::unique_ptr<optim::Optimizer> local_;
  std::optional<optim::OptimizerState> whole_;
};

/// `zero_redundancy<optim::AdamW>(model.parameters(), job.process_group(), {.lr = 1e-3})`.
template <typename O, typename Options>
std::unique_ptr<ZeroRedundancyOptimizer> zero_redundancy(std::vector<Tensor> parameters, ProcessGroupPtr group,
                                                         const Options& options) {
  return std::make_unique<ZeroRedundancyOptimizer>(
      std::move(parameters), std::move(group),
      [&](std::vector<Tensor> share) { return std::make_unique<O>(std::move(share), options); });
}

}  // namespace lockstep::distributed
