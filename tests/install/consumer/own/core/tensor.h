#pragma once

// The user's own: names that many projects have.
namespace own {
struct Tensor {
  int part = 1;
};
}  // namespace own
