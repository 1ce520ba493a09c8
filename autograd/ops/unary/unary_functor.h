#pragma once

// What a functor of the unary family is. For kernels (.cpp and .cu) only.

#include "lockstep/autograd/ops/unary/unary_kernels.h"

namespace lockstep::unary {

// A functor is made from UnaryParams for values of type T, and has value(x) and gradient(grad, saved); kSaves tells
// whether `saved` is the input or the output.
enum class Saves { input, output };

struct FunctorOfInput {
  static constexpr Saves kSaves = Saves::input;
  explicit FunctorOfInput(UnaryParams) {}
};
struct FunctorOfOutput {
  static constexpr Saves kSaves = Saves::output;
  explicit FunctorOfOutput(UnaryParams) {}
};

}  // namespace lockstep::unary
