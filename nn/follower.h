#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn::detail {

/// Gives a replica what a program does to a module, and to the modules below it, after both were made by the same
/// function: its forward and backward hooks, and training or evaluation mode. Hooks which that function registers both
/// have already, each its own: they may refer to the module that they are on.
class Follower {
 public:
  /// Of two modules of one structure, which outlive this object.
  Follower(Module& from, Module& to);

  /// Adds hooks that `from` has got since, drops those that it has no more, and takes over the modes.
  void update();

 private:
  Module& from_;
  Module& to_;
  std::vector<std::uint64_t> first_;  // by module: the key of the first hook that is followed
};

}  // namespace lockstep::nn::detail
