#pragma once

#include "lockstep/autograd/ops/recurrent/recurrent.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// One step of a cell. All tensors contiguous, of one floating-point dtype; N rows.

/// What a step reads and writes.
struct CellStep {
  Tensor input;     ///< [N, gates H]: the step's products with W_ih and the biases
  Tensor hidden;    ///< [N, gates H]: h W_hh^T + b_hh
  Tensor h_before;  ///< [N, H]; of a gru
  Tensor c_before;  ///< [N, H]; of an lstm
  Tensor h;         ///< [N, H]: result
  Tensor c;         ///< [N, H]: result, of an lstm
  /// [N, 4 H], result: of an lstm its gates; of a gru reset, update, new, and what reset is multiplied with. Undefined
  /// where nobody will ask for gradients, and for the others.
  Tensor reserve;
};
using CellForward = void(RecurrentCell cell, const CellStep& step);
CellForward cell_cpu, cell_cuda;

/// What its gradient reads and writes.
struct CellGradient {
  Tensor h_grad;         ///< [N, H]
  Tensor c_grad;         ///< [N, H], of an lstm: becomes that of c_before
  Tensor reserve;        ///< as the step left it
  Tensor h_before;       ///< [N, H]; of a gru
  Tensor c_before;       ///< [N, H]; of an lstm
  Tensor h, c;           ///< the step's results: h unless of a gru or lstm, c of an lstm
  Tensor input_grad;     ///< result, [N, gates H]
  Tensor hidden_grad;    ///< result, [N, gates H]; of a gru, for the others it is that of the input
  Tensor h_before_grad;  ///< result, of a gru: the part of h_before's that does not go through the gates
};
using CellBackward = void(RecurrentCell cell, const CellGradient& step);
CellBackward cell_backward_cpu, cell_backward_cuda;

/// A matrix [k, n] of any strides as hidden_product_cpu() reads it fastest: panels of columns, one behind the other, in
/// float32 if it is of a half type.
Tensor prepare_hidden_cpu(const Tensor& matrix);
/// out = x * matrix + bias for x [N, k] and out [N, n], contiguous; bias is [n] or undefined, `panels` what
/// prepare_hidden_cpu() gave.
using HiddenProduct = void(const Tensor& x, const Tensor& panels, const Tensor& bias, const Tensor& out);
HiddenProduct hidden_product_cpu;

}  // namespace lockstep
