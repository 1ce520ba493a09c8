#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// The cells of recurrent layers: h' = tanh(a) and h' = relu(a) of a = x W_ih^T + b_ih + h W_hh^T + b_hh (Elman,
/// "Finding structure in time", 1990), Hochreiter and Schmidhuber, "Long short-term memory" (1997), and Cho et al.,
/// "Learning phrase representations using RNN encoder-decoder" (2014), with PyTorch's formulas and order of gates.
enum class RecurrentCell : std::uint8_t { rnn_tanh, rnn_relu, lstm, gru };

/// Weights of a cell: gates is 1, 4 (input, forget, cell, output) or 3 (reset, update, new) times the width H.
struct CellWeights {
  Tensor weight_ih;  ///< [gates H, in]
  Tensor weight_hh;  ///< [gates H, H]
  Tensor bias_ih;    ///< [gates H]; undefined: 0
  Tensor bias_hh;    ///< [gates H]; undefined: 0
};
/// What a cell remembers.
struct CellState {
  Tensor h;  ///< [N, H]
  Tensor c;  ///< [N, H], of an lstm; else undefined
};
/// What recurrent() gives.
struct RecurrentResult {
  Tensor output;    ///< [T, N, H]: h after each step
  CellState state;  ///< after the last step
};

/// A cell over the T steps of x [T, N, in], from the state `start`, whose undefined tensors stand for zeros; `reverse`:
/// from the last step to the first. The products with W_ih are one for all steps, and so are the gradients of all
/// weights. Floating-point tensors of one dtype. Throws Error for sizes that do not fit.
RecurrentResult recurrent(RecurrentCell cell, const Tensor& x, const CellState& start, const CellWeights& weights,
                          bool reverse = false);

}  // namespace lockstep
