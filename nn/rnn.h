#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/recurrent/recurrent.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of RNN, LSTM and GRU.
struct RNNOptions {
  std::int64_t num_layers = 1;  ///< each takes the outputs of the one before
  bool bias = true;             ///< bias_ih and bias_hh
  bool batch_first = false;     ///< x is [N, T, in] and the output [N, T, width] instead of [T, N, ...]
  double dropout = 0.0;         ///< of the outputs of all layers but the last, while training
  bool bidirectional = false;   ///< a second cell in each layer goes from the last step to the first
  bool relu = false;            ///< of RNN: relu instead of tanh
  std::int64_t proj_size = 0;   ///< of LSTM: h is a projection to so many numbers; 0: none
};

/// State of RNN and GRU: [layers * directions, N, width], or without N as x; an undefined one stands for zeros.
using Hidden = Tensor;
/// State of LSTM; undefined tensors stand for zeros.
struct LSTMState {
  Tensor h;  ///< [layers * directions, N, width]
  Tensor c;  ///< [layers * directions, N, width]

  /// The same values without their history, to begin the next piece of a long sequence with.
  LSTMState detach() const { return {h.defined() ? h.detach() : h, c.defined() ? c.detach() : c}; }
};

}  // namespace lockstep::nn

/// PyTorch's torch.nn.utils.rnn.
namespace lockstep::nn::utils::rnn {

/// Sequences of several lengths without their padding, the longest first: `data` has step 0 of all of them, then step 1
/// of those that have one, and so on. Made by pack_padded_sequence() and pack_sequence().
struct PackedSequence {
  Tensor data;              ///< [sum of the lengths, ...]
  Tensor batch_sizes;       ///< int64 [longest], on the CPU: how many sequences have that step
  Tensor sorted_indices;    ///< int64 [N]: which sequence is the longest, ...; undefined: they came sorted
  Tensor unsorted_indices;  ///< its inverse
};

/// Packs x [T, N, ...], or [N, T, ...] if batch_first, of which lengths[i] steps of sequence i count (int64 [N] on the
/// CPU, each at least 1 and at most T). Differentiable. With `enforce_sorted` the lengths must not rise. Throws Error
/// for other lengths.
PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, bool batch_first = false,
                                    bool enforce_sorted = true);
/// pack_padded_sequence() of sequences [T_i, ...].
PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted = true);
/// The opposite: the sequences, in their first order and with `padding_value` behind each, [T, N, ...] or [N, T, ...],
/// and their lengths, int64 [N]. T is the longest, or `total_length`, which must not be less.
std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed, bool batch_first = false,
                                              double padding_value = 0.0,
                                              std::optional<std::int64_t> total_length = std::nullopt);
/// Sequences [T_i, ...] side by side, with `padding_value` behind the shorter ones: [T, N, ...] or [N, T, ...].
Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first = false, double padding_value = 0.0);

}  // namespace lockstep::nn::utils::rnn

namespace lockstep::nn {

/// What RNN, LSTM and GRU share. Parameters weight_ih_l0 [gates width, in], weight_hh_l0 [gates width, width],
/// bias_ih_l0, bias_hh_l0 and those of the next layers (_l1, ...) and of the other direction (_l0_reverse), as PyTorch
/// names, shapes and draws them: uniform within 1 / sqrt(width).
class RecurrentLayers {
 public:
  std::int64_t input_size() const { return in_; }                             ///< of x
  std::int64_t hidden_size() const { return width_; }                         ///< of h
  std::int64_t directions() const { return options_.bidirectional ? 2 : 1; }  ///< 2 if bidirectional

 protected:
  RecurrentLayers(Module* owner, RecurrentCell cell, std::int64_t in, std::int64_t width, const RNNOptions& options);
  /// The outputs of the last layer, and the state after the last step.
  std::pair<Tensor, LSTMState> run(const Tensor& x, const LSTMState& start, bool is_training) const;
  /// The same of sequences of several lengths; states are in the order in which these were given.
  std::pair<utils::rnn::PackedSequence, LSTMState> run(const utils::rnn::PackedSequence& x, const LSTMState& start,
                                                       bool is_training) const;

 private:
  const char* kind() const;  // "nn::LSTM"
  CellWeights weights_of(std::int64_t row) const;
  RecurrentResult over(const Tensor& x, const LSTMState& start, std::int64_t row, bool reverse) const;
  void project(RecurrentResult& result, std::int64_t row) const;
  std::int64_t h_size() const { return options_.proj_size > 0 ? options_.proj_size : width_; }
  std::size_t per_row() const { return (options_.bias ? 4u : 2u) + (options_.proj_size > 0 ? 1u : 0u); }

  RecurrentCell cell_;
  std::int64_t in_, width_;
  RNNOptions options_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // per_row() for each layer and direction
};

/// Elman's recurrent layers; see lockstep::recurrent.
///
///   auto [output, h] = rnn(x);      // x [T, N, in]: output [T, N, width], h [layers, N, width]
///   auto [next, h2] = rnn(y, h);
class RNN : public ModuleOf<RNN>, public RecurrentLayers {
 public:
  RNN(std::int64_t in, std::int64_t width, RNNOptions options = {});
  RNN(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options = {});
  /// x is [T, N, in], or [T, in] for one sample. Throws Error for sizes that do not fit.
  std::pair<Tensor, Hidden> forward(const Tensor& x, const Hidden& start = {});
  /// forward() of sequences of several lengths, each of which ends with its own last step.
  std::pair<utils::rnn::PackedSequence, Hidden> forward_with_packed_input(const utils::rnn::PackedSequence& x,
                                                                          const Hidden& start = {});
};

/// Long short-term memory: as RNN, with a state of h and c.
///
///   auto [output, state] = lstm(x);
///   auto [next, state2] = lstm(y, state.detach());
class LSTM : public ModuleOf<LSTM>, public RecurrentLayers {
 public:
  LSTM(std::int64_t in, std::int64_t width, RNNOptions options = {});
  LSTM(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options = {});
  /// x is [T, N, in], or [T, in] for one sample. Throws Error for sizes that do not fit.
  std::pair<Tensor, LSTMState> forward(const Tensor& x, const LSTMState& start = {});
  using ModuleOf::operator();
  /// `lstm(x, {h, c})`.
  std::pair<Tensor, LSTMState> operator()(const Tensor& x, const LSTMState& start) {
    return ModuleOf::operator()(x, start);
  }
  /// forward() of sequences of several lengths, each of which ends with its own last step.
  std::pair<utils::rnn::PackedSequence, LSTMState> forward_with_packed_input(const utils::rnn::PackedSequence& x,
                                                                             const LSTMState& start = {});
};

/// Gated recurrent units: as RNN.
class GRU : public ModuleOf<GRU>, public RecurrentLayers {
 public:
  GRU(std::int64_t in, std::int64_t width, RNNOptions options = {});
  GRU(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options = {});
  /// x is [T, N, in], or [T, in] for one sample. Throws Error for sizes that do not fit.
  std::pair<Tensor, Hidden> forward(const Tensor& x, const Hidden& start = {});
  /// forward() of sequences of several lengths, each of which ends with its own last step.
  std::pair<utils::rnn::PackedSequence, Hidden> forward_with_packed_input(const utils::rnn::PackedSequence& x,
                                                                          const Hidden& start = {});
};

/// What RNNCell, LSTMCell and GRUCell share: parameters weight_ih, weight_hh, bias_ih and bias_hh, as PyTorch's.
class CellParameters {
 public:
  Parameter weight_ih;  ///< [gates width, in]
  Parameter weight_hh;  ///< [gates width, width]
  Parameter bias_ih;    ///< [gates width]; undefined without bias
  Parameter bias_hh;    ///< [gates width]; undefined without bias

 protected:
  CellParameters(Module* owner, std::int64_t gates, std::int64_t in, std::int64_t width, bool bias);
  /// One step from x [N, in], or [in].
  LSTMState step(RecurrentCell cell, const Tensor& x, const LSTMState& start) const;
};

/// One step of RNN: h = cell(x, h) for x [N, in] and h [N, width].
class RNNCell : public ModuleOf<RNNCell>, public CellParameters {
 public:
  RNNCell(std::int64_t in, std::int64_t width, bool bias = true, bool relu = false);
  RNNCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias = true,
          bool relu = false);
  /// The next h, from zeros if h is undefined.
  Tensor forward(const Tensor& x, const Tensor& h = {});

 private:
  bool relu_;
};

/// One step of LSTM: state = cell(x, state), whose h is the output.
class LSTMCell : public ModuleOf<LSTMCell>, public CellParameters {
 public:
  LSTMCell(std::int64_t in, std::int64_t width, bool bias = true);
  LSTMCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias = true);
  /// The next state, from zeros where it is undefined.
  LSTMState forward(const Tensor& x, const LSTMState& state = {});
  using ModuleOf::operator();
  /// `cell(x, {h, c})`.
  LSTMState operator()(const Tensor& x, const LSTMState& state) { return ModuleOf::operator()(x, state); }
};

/// One step of GRU: h = cell(x, h).
class GRUCell : public ModuleOf<GRUCell>, public CellParameters {
 public:
  GRUCell(std::int64_t in, std::int64_t width, bool bias = true);
  GRUCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias = true);
  /// The next h, from zeros if h is undefined.
  Tensor forward(const Tensor& x, const Tensor& h = {});
};

}  // namespace lockstep::nn
