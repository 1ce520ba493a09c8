#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {
class Sequential;
}

namespace lockstep::distributed {

/// In which order a stage computes its micro-batches; see Note [Pipeline schedules].
enum class PipelineSchedule : std::uint8_t {
  gpipe,                     ///< all forwards, then all backwards
  one_forward_one_backward,  ///< in turn: fewer activations
  interleaved,               ///< several chunks of layers a stage: a smaller bubble, more messages
};

/// "gpipe", "1f1b" and "interleaved", and back. Throws Error, listing them, for another text.
PipelineSchedule parse_pipeline_schedule(std::string_view text);
std::string to_string(PipelineSchedule schedule);

/// One link of the chain that a model is.
struct PipelineLayer {
  std::string name;  ///< for messages: "h.3"
  /// What `forward` computes with; the last layer's also the loss. A module in several layers is tied.
  std::vector<nn::Module*> modules;
  /// From what the layer before gives, the first from a batch's x. Empty: that of the one module.
  std::function<Tensor(const Tensor& x)> forward = {};
};

/// The elements of a Sequential, each a layer.
std::vector<PipelineLayer> pipeline_layers(const nn::Sequential& chain);

/// Options of PipelineParallel.
struct PipelineParallelOptions {
  ProcessGroupPtr group = nullptr;  ///< the ranks that are the stages, such as Mesh::pipeline(); null: this one alone
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;  ///< a stage has, of an interleaved schedule: 2 or more
  /// How many layers each chunk has. Empty: so that their `costs` are even.
  std::vector<std::int64_t> layers_of_chunks = {};
  /// What each layer costs, such as measure_layers() gives. Empty: the elements of its parameters.
  std::vector<double> costs = {};
  bool recompute = false;     ///< keep each layer's input alone for backward (nn::recompute): less memory, same bits
  DType autocast = kFloat32;  ///< mixed precision of the layers: kBFloat16; kFloat32: none
};

}  // namespace lockstep::distributed
