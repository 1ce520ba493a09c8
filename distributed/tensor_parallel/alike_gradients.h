#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Sees to it that parameters which all ranks of a group have alike get one gradient: a plan that forgets a layer, or
/// ranks with other samples or seeds, would let them drift apart without a word. On CPUs, and in the first backward
/// passes alone, which is where such a mistake shows.
class AlikeGradients {
 public:
  AlikeGradients(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group);
  ~AlikeGradients();
  AlikeGradients(const AlikeGradients&) = delete;
  AlikeGradients& operator=(const AlikeGradients&) = delete;

 private:
  std::vector<std::pair<Tensor, std::uint64_t>> hooks_;
};

}  // namespace lockstep::distributed
