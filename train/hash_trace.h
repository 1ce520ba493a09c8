#pragma once

// For .cpp files only.

#include <cstdint>
#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/train/line_file.h"

namespace lockstep::training {

/// Writes, for each step, hashes of its loss, gradients and new weights, one JSON line a step, for lockstep-bisect.
class HashTrace {
 public:
  /// An empty path makes a trace that writes nothing. `settings` describes the run in the first line. `appends`: go on
  /// in a file that is there. Throws Error if the file cannot be opened.
  HashTrace(const std::string& path, const std::string& settings, bool appends);

  /// After each step; the gradients are still those that it used. `loss`: one element. Throws Error if the line cannot
  /// be written.
  void step(std::int64_t step, const Tensor& loss, nn::Module& module);

 private:
  std::string path_;
  LineFile file_;
};

}  // namespace lockstep::training
