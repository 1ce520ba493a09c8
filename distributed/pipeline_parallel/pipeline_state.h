#pragma once

// For .cpp files only.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/parallel/model_part.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/distributed/pipeline_parallel/schedule.h"
#include "lockstep/distributed/pipeline_parallel/stage_links.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {

/// The layers of a pipeline, who has them, and what they compute.
class PipelineParallel::State final : public ModelPart {
 public:
  State(nn::Module& module, std::vector<PipelineLayer> layers, const PipelineParallelOptions& options);

  /// A run of layers; see Note [Pipeline schedules].
  struct Chunk {
    std::size_t first = 0, end = 0;
  };
  /// A trained parameter that several chunks use, in their order.
  struct Tied {
    nn::NamedTensor parameter;
    std::vector<int> chunks;
  };
  /// Of every parameter and buffer of the module.
  struct Member {
    nn::NamedTensor named;
    bool is_parameter = false;
    bool trained = false;
    std::vector<int> chunks;  // that use it, in their order
  };

  std::vector<std::vector<nn::NamedTensor>> trained() const override;
  std::vector<Tensor> shared() const override;
  std::unique_ptr<StepRunner> make_runner(const TrainingStepOptions& options, ShardSums* sums) override;

  int stages() const { return group->world_size(); }
  int stage_of(int chunk) const { return chunk % stages(); }
  int last_chunk() const { return static_cast<int>(chunks.size()) - 1; }
  bool is_mine(int chunk) const { return stage_of(chunk) == group->rank(); }
  /// The member's first user is here: it is reduced, counted and saved here.
  bool owns(const Member& member) const { return !member.chunks.empty() && is_mine(member.chunks.front()); }
  bool holds(const Member& member) const;
  /// The place of a chunk of this rank in trained().
  std::size_t place_of(int chunk) const { return static_cast<std::size_t>(chunk / stages()); }

  /// Runs the layers of a chunk; errors name the layer and what `micro_batch` is told of it.
  Tensor run_chunk(int chunk, Tensor x, std::int64_t micro_batch);
  /// Ends the job's groups if `body` throws anything of its own, and says where.
  void guarded(int chunk, std::int64_t micro_batch, const char* pass, const std::function<void()>& body);
  /// "layer 'h.2'", or "layers 'h.2' to 'h.4'".
  std::string layers_in(int chunk) const;
  std::string describe(const StageKey& key) const;

  /// What each stage does for so many micro-batches; `by_shard`: tied gradients travel for each of them.
  const std::vector<std::vector<PipelineAction>>& lists(std::int64_t micro_batches, bool by_shard);
  /// Whether the gradient of a tied parameter travels from `from` to the chunk that uses it before.
  bool tied_travels(int from, int to, std::int64_t micro_batch, std::int64_t micro_batches, bool by_shard) const;
  /// What the other stages send this one in a step, in their order.
  std::vector<std::deque<StageKey>> incoming(std::int64_t micro_batches, bool by_shard);

  nn::Module& module;
  PipelineParallelOptions options;
  ProcessGroupPtr group;
  std::vector<PipelineLayer> layers;
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> counts;  // of layers, by chunk
  std::vector<Member> members;
  std::vector<Tied> tied;
  std::unique_ptr<StageLinks> links;
  Tensor nothing;  // a leaf without elements, for an optimizer without parameters
  std::unique_ptr<optim::detail::GradientsInParts> gradients_in_parts;  // of several stages

 private:
  void check_layers() const;
  void cut();
  void find_members();
  void agree();
  void drop_others();

  std::vector<int> chunks_tied_to() const;

  std::map<std::pair<std::int64_t, bool>, std::vector<std::vector<PipelineAction>>> lists_;
  std::vector<std::unique_ptr<nn::Module>> parameters_of_;  // by layer, for recomputation
  std::size_t at_layer_ = 0;                                // that runs, for errors
  bool in_layer_ = false;
};

}  // namespace lockstep::distributed
