#include "lockstep/nn/rnn.h"

#include <cmath>

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/dropout/dropout.h"
#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

const char* name_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? "nn::LSTM" : cell == RecurrentCell::gru ? "nn::GRU" : "nn::RNN";
}

std::int64_t gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

Tensor drawn(const Shape& sizes, std::int64_t width) {
  const Tensor tensor = empty(sizes);
  const double bound = width > 0 ? 1.0 / std::sqrt(static_cast<double>(width)) : 0.0;
  init::uniform_(tensor, -bound, bound);
  return tensor;
}

/// Row i of a state, undefined if there is none.
Tensor layer_of(const Tensor& state, std::int64_t i) {
  return state.defined() ? state.select(0, i) : state;
}

void check_state(RecurrentCell cell, const Tensor& state, std::int64_t rows, std::int64_t n, std::int64_t width,
                 const char* what) {
  if (!state.defined()) return;
  LOCKSTEP_CHECK(state.sizes() == Shape({rows, n, width}),
                 "[{}] expected a state {} of sizes [{}, {}, {}] (layers * directions, batch, width), found {}",
                 name_of(cell), what, rows, n, width, to_string(state.sizes()));
}

}  // namespace

RecurrentLayers::RecurrentLayers(Module* owner, RecurrentCell cell, std::int64_t in, std::int64_t width,
                                 const RNNOptions& options)
    : cell_(cell), in_(in), width_(width), options_(options) {
  LOCKSTEP_CHECK(in > 0 && width > 0 && options.num_layers > 0,
                 "[{}] expected positive sizes and layers, found {} -> {} and {} layers", name_of(cell), in, width,
                 options.num_layers);
  LOCKSTEP_CHECK(options.dropout >= 0.0 && options.dropout <= 1.0, "[{}] expected 0 <= dropout <= 1, found {}",
                 name_of(cell), options.dropout);
  LOCKSTEP_CHECK(
      options.proj_size == 0 || (cell == RecurrentCell::lstm && options.proj_size > 0 && options.proj_size < width),
      "[{}] a proj_size is for LSTM, from 1 to less than the width {}; found {}", name_of(cell), width,
      options.proj_size);
  const std::int64_t gates = gates_of(cell) * width;
  for (std::int64_t layer = 0; layer < options.num_layers; ++layer)
    for (std::int64_t direction = 0; direction < directions(); ++direction) {
      const std::string suffix = "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
      const auto add = [&](const char* name, const Shape& sizes) {
        parameters_.push_back(std::make_unique<Parameter>(owner, name + suffix, drawn(sizes, width)));
      };
      add("weight_ih", {gates, layer == 0 ? in : h_size() * directions()});
      add("weight_hh", {gates, h_size()});
      if (options.bias) {
        add("bias_ih", {gates});
        add("bias_hh", {gates});
      }
      if (options.proj_size > 0) add("weight_hr", {options.proj_size, width});
    }
}

const char* RecurrentLayers::kind() const {
  return name_of(cell_);
}

// Note [Projected LSTM]
// With a projection W_hr the h of a step is W_hr h', and the next step takes W_hh h: the product of both weights is
// that of an ordinary cell that passes h' on, whose outputs are projected all at once. An h to start from is no
// projection of a known h', so the first step gets it as further inputs, with W_hh as their weights; the other steps
// get zeros there.

CellWeights RecurrentLayers::weights_of(std::int64_t row) const {
  const auto* const first = &parameters_[static_cast<std::size_t>(row) * per_row()];
  CellWeights weights{*first[0], *first[1], {}, {}};
  if (options_.bias) weights.bias_ih = *first[2], weights.bias_hh = *first[3];
  if (options_.proj_size > 0) weights.weight_hh = matmul(weights.weight_hh, *first[per_row() - 1]);
  return weights;
}

void RecurrentLayers::project(RecurrentResult& result, std::int64_t row) const {
  if (options_.proj_size == 0) return;
  const Tensor& weight_hr = *parameters_[(static_cast<std::size_t>(row) + 1) * per_row() - 1];
  result.output = linear(result.output, weight_hr);
  result.state.h = linear(result.state.h, weight_hr);
}

RecurrentResult RecurrentLayers::over(const Tensor& x, const LSTMState& start, std::int64_t row, bool reverse) const {
  CellWeights weights = weights_of(row);
  if (options_.proj_size == 0 || !start.h.defined() || x.size(0) == 0) {
    RecurrentResult result = recurrent(cell_, x, {start.h, start.c}, weights, reverse);
    project(result, row);
    return result;
  }
  const Tensor none = zeros({x.size(0) - 1, x.size(1), options_.proj_size}, options_of(x));
  const Tensor first = start.h.unsqueeze(0);
  const Tensor& weight_hh = *parameters_[static_cast<std::size_t>(row) * per_row() + 1];
  weights.weight_ih = cat({weights.weight_ih, weight_hh}, 1);
  RecurrentResult result =
      recurrent(cell_, cat({x, cat(reverse ? std::vector{none, first} : std::vector{first, none})}, 2), {{}, start.c},
                weights, reverse);
  project(result, row);
  return result;
}

std::pair<Tensor, LSTMState> RecurrentLayers::run(const Tensor& given, const LSTMState& start, bool is_training) const {
  LOCKSTEP_CHECK(given.defined() && (given.dim() == 2 || given.dim() == 3) && given.size(-1) == in_,
                 "[{}] expected x [{}, {}] or, of one sample, [T, {}], found {}", kind(),
                 options_.batch_first ? "N, T" : "T, N", in_, in_,
                 given.defined() ? to_string(given.sizes()) : "an undefined tensor");
  if (given.dim() == 2) {  // one sample
    const auto wide = [](const Tensor& state) { return state.defined() ? state.unsqueeze(1) : state; };
    auto [output, state] =
        run(given.unsqueeze(options_.batch_first ? 0 : 1), {wide(start.h), wide(start.c)}, is_training);
    return {output.squeeze(options_.batch_first ? 0 : 1),
            {state.h.squeeze(1), state.c.defined() ? state.c.squeeze(1) : state.c}};
  }
  Tensor x = options_.batch_first ? given.transpose(0, 1) : given;
  const std::int64_t n = x.size(1), both = directions(), rows = options_.num_layers * both;
  check_state(cell_, start.h, rows, n, h_size(), "h");
  check_state(cell_, start.c, rows, n, width_, "c");
  std::vector<Tensor> h, c;
  for (std::int64_t layer = 0; layer < options_.num_layers; ++layer) {
    if (layer > 0 && options_.dropout > 0.0) x = dropout(x, options_.dropout, is_training);
    std::vector<Tensor> outputs;
    for (std::int64_t direction = 0; direction < both; ++direction) {
      const std::int64_t row = layer * both + direction;
      const RecurrentResult result = over(x, {layer_of(start.h, row), layer_of(start.c, row)}, row, direction == 1);
      outputs.push_back(result.output);
      h.push_back(result.state.h);
      if (result.state.c.defined()) c.push_back(result.state.c);
    }
    x = outputs.size() == 1 ? outputs[0] : cat(outputs, 2);
  }
  return {options_.batch_first ? x.transpose(0, 1) : x, {stack(h), c.empty() ? Tensor() : stack(c)}};
}

RNN::RNN(std::int64_t in, std::int64_t width, RNNOptions options) : RNN(nullptr, {}, in, width, options) {}
RNN::RNN(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options)
    : ModuleOf(parent, name),
      RecurrentLayers(this, options.relu ? RecurrentCell::rnn_relu : RecurrentCell::rnn_tanh, in, width, options) {}
std::pair<Tensor, Hidden> RNN::forward(const Tensor& x, const Hidden& start) {
  const auto [output, state] = run(x, {start, {}}, is_training());
  return {output, state.h};
}

LSTM::LSTM(std::int64_t in, std::int64_t width, RNNOptions options) : LSTM(nullptr, {}, in, width, options) {}
LSTM::LSTM(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options)
    : ModuleOf(parent, name), RecurrentLayers(this, RecurrentCell::lstm, in, width, options) {}
std::pair<Tensor, LSTMState> LSTM::forward(const Tensor& x, const LSTMState& start) {
  return run(x, start, is_training());
}

GRU::GRU(std::int64_t in, std::int64_t width, RNNOptions options) : GRU(nullptr, {}, in, width, options) {}
GRU::GRU(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, RNNOptions options)
    : ModuleOf(parent, name), RecurrentLayers(this, RecurrentCell::gru, in, width, options) {}
std::pair<Tensor, Hidden> GRU::forward(const Tensor& x, const Hidden& start) {
  const auto [output, state] = run(x, {start, {}}, is_training());
  return {output, state.h};
}

CellParameters::CellParameters(Module* owner, std::int64_t gates, std::int64_t in, std::int64_t width, bool bias)
    : weight_ih(owner, "weight_ih", drawn({gates * width, in}, width)),
      weight_hh(owner, "weight_hh", drawn({gates * width, width}, width)),
      bias_ih(owner, "bias_ih", bias ? drawn({gates * width}, width) : Tensor()),
      bias_hh(owner, "bias_hh", bias ? drawn({gates * width}, width) : Tensor()) {}

LSTMState CellParameters::step(RecurrentCell cell, const Tensor& x, const LSTMState& start) const {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 1 || x.dim() == 2), "[{}Cell] expected x [N, in] or [in], found {}",
                 name_of(cell), x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  if (x.dim() == 1) {
    const auto wide = [](const Tensor& state) { return state.defined() ? state.unsqueeze(0) : state; };
    const LSTMState state = step(cell, x.unsqueeze(0), {wide(start.h), wide(start.c)});
    return {state.h.squeeze(0), state.c.defined() ? state.c.squeeze(0) : state.c};
  }
  const RecurrentResult result =
      recurrent(cell, x.unsqueeze(0), {start.h, start.c}, {weight_ih, weight_hh, bias_ih, bias_hh});
  return {result.state.h, result.state.c};
}

RNNCell::RNNCell(std::int64_t in, std::int64_t width, bool bias, bool relu)
    : RNNCell(nullptr, {}, in, width, bias, relu) {}
RNNCell::RNNCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias, bool relu)
    : ModuleOf(parent, name), CellParameters(this, 1, in, width, bias), relu_(relu) {}
Tensor RNNCell::forward(const Tensor& x, const Tensor& h) {
  return step(relu_ ? RecurrentCell::rnn_relu : RecurrentCell::rnn_tanh, x, {h, {}}).h;
}

LSTMCell::LSTMCell(std::int64_t in, std::int64_t width, bool bias) : LSTMCell(nullptr, {}, in, width, bias) {}
LSTMCell::LSTMCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias)
    : ModuleOf(parent, name), CellParameters(this, 4, in, width, bias) {}
LSTMState LSTMCell::forward(const Tensor& x, const LSTMState& state) {
  return step(RecurrentCell::lstm, x, state);
}

GRUCell::GRUCell(std::int64_t in, std::int64_t width, bool bias) : GRUCell(nullptr, {}, in, width, bias) {}
GRUCell::GRUCell(Module* parent, std::string_view name, std::int64_t in, std::int64_t width, bool bias)
    : ModuleOf(parent, name), CellParameters(this, 3, in, width, bias) {}
Tensor GRUCell::forward(const Tensor& x, const Tensor& h) {
  return step(RecurrentCell::gru, x, {h, {}}).h;
}

}  // namespace lockstep::nn
