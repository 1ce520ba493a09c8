#pragma once

#include <string>

namespace lockstep::apps {

/// What two files of `mnist_train --trace-hashes` have in common and where they part.
struct Comparison {
  bool equal = false;
  std::string text;  ///< for people: one line, and the two runs' settings where they differ
};

/// Compares the steps that both files hold, in the order in which a step computes: loss, gradients, weights, each by
/// name. A step that a file holds several times, because its run went back to a checkpoint, must be the same each time.
/// Steps of one file alone are said and no difference; a file that ends in the middle of a line is not equal to any.
/// Throws Error naming the file and line for one that cannot be read or is no such trace, and if no step is in both.
Comparison compare_traces(const std::string& path_a, const std::string& path_b);

}  // namespace lockstep::apps
