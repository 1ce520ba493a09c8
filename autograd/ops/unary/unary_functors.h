#pragma once

// The functor of each operation of the unary family, shared by every device. For kernels (.cpp and .cu) only.

#include <type_traits>

#include "lockstep/autograd/ops/unary/activation_functors.h"
#include "lockstep/autograd/ops/unary/arithmetic_functors.h"
#include "lockstep/autograd/ops/unary/elementary_functors.h"
#include "lockstep/autograd/ops/unary/special_functors.h"

namespace lockstep::unary {

/// True for the operations that keep integers.
constexpr bool takes_integers(UnaryOp op) {
  return op <= UnaryOp::clamp;
}

/// Calls f.operator()<Functor>() with the functor of `op` for values of type T (float, double; std::int64_t only if
/// takes_integers(op)).
template <typename T, typename F>
void visit(UnaryOp op, F&& f) {
  switch (op) {
#define LOCKSTEP_UNARY_OP(name, Functor)                                                                        \
  case UnaryOp::name:                                                                                           \
    if constexpr (!std::is_integral_v<T> || takes_integers(UnaryOp::name)) f.template operator()<Functor<T>>(); \
    return;
    LOCKSTEP_UNARY_OPS(LOCKSTEP_UNARY_OP)
#undef LOCKSTEP_UNARY_OP
  }
}

}  // namespace lockstep::unary
