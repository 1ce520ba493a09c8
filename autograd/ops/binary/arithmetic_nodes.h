#pragma once

// Backward functions of sums, products and quotients. For .cpp files only.

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/binary/operands.h"

namespace lockstep::binary {

class AddBackward final : public Node {
 public:
  const char* name() const override { return "AddBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override;
  TensorList apply_recorded(TensorList grads) override;

  Form a, b;
  double alpha = 1.0;
};

/// A number was added: the gradient passes unchanged.
class AddScalarBackward final : public Node {
 public:
  const char* name() const override { return "AddScalarBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override { return grads; }
  TensorList apply_recorded(TensorList grads) override { return grads; }
};

/// Keeps a and b, each if the other one needs it.
class MulBackward final : public Node {
 public:
  const char* name() const override { return "MulBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override;
  TensorList apply_recorded(TensorList grads) override;

  Form form_a, form_b;
};

class LerpBackward final : public Node {
 public:
  const char* name() const override { return "LerpBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override;
  TensorList apply_recorded(TensorList grads) override;

  Form a, b;
  double weight = 0.0;
};

class MulScalarBackward final : public Node {
 public:
  const char* name() const override { return "MulScalarBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override;
  TensorList apply_recorded(TensorList grads) override;

  double factor = 1.0;
};

/// A tensor or a number divided by a tensor (input 1), or a tensor divided by a number. Keeps both; undefined: the
/// number counts, or nobody asks.
class DivBackward final : public Node {
 public:
  const char* name() const override { return "DivBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override;
  TensorList apply_recorded(TensorList grads) override;

  double scalar_a = 0.0, scalar_b = 1.0;
  Form form_a, form_b;
};

}  // namespace lockstep::binary
