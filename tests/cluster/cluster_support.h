#pragma once

// What the tests of whole jobs share.

#include <string>
#include <vector>

#include "tests/apps/train_support.h"

namespace lockstep::testing {

using Arguments = std::vector<std::string>;

/// What a result line says of the training itself, without times; empty if there is none.
inline std::string outcome(const std::string& output) {
  const std::size_t line = output.find("result: ");
  if (line == std::string::npos) return "";
  const std::string text = output.substr(line, output.find('\n', line) - line);
  std::string found;
  for (const char* key : {"test_accuracy=", "test_loss=", "steps=", "weights_sha256="}) {
    const std::size_t at = text.find(key);
    if (at != std::string::npos) found += text.substr(at, text.find(' ', at) - at) + " ";
  }
  return found;
}

/// mnist_train on two or more ranks.
inline Arguments training_program(int steps) {
  return Arguments{LOCKSTEP_MNIST_TRAIN} + dataset() +
         Arguments{"--mode",    "ddp", "--model", "lenet", "--batch-size", "64", "--max-steps", std::to_string(steps),
                   "--timeout", "60"};
}

}  // namespace lockstep::testing
