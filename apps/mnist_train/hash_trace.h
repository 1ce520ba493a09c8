#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "nn/module.h"

namespace lockstep::apps {

/// Writes, for each step, hashes of its loss, gradients and new weights, one JSON line a step, for lockstep-bisect.
class HashTrace {
 public:
  /// An empty path makes a trace that writes nothing. `settings` describes the run in the first line. `appends`: go on
  /// in a file that is there. Throws Error if the file cannot be opened.
  HashTrace(const std::string& path, const std::string& settings, bool appends);

  /// Between backward and the optimizer's step.
  void gradients(nn::Module& module);
  /// After it. Throws Error if the line cannot be written.
  void step(std::int64_t step, double loss, nn::Module& module);

 private:
  std::string path_;
  std::ofstream file_;
  std::string gradients_;
};

}  // namespace lockstep::apps
