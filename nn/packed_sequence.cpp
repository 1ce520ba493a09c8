// Sequences of several lengths, and recurrent layers over them.

#include <algorithm>
#include <numeric>

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/dropout/dropout.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/rnn.h"

namespace lockstep::nn {
namespace utils::rnn {
namespace {

Tensor rows_of(const Tensor& x, const std::vector<std::int64_t>& rows) {
  return x.index_select(0, tensor(rows).to(x.device()));
}

Shape with_first(const Tensor& x, std::initializer_list<std::int64_t> first, int dropped) {
  std::vector<std::int64_t> sizes(first);
  sizes.insert(sizes.end(), x.sizes().begin() + dropped, x.sizes().end());
  return sizes;
}

}  // namespace

PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, bool batch_first, bool enforce_sorted) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 2, "[pack_padded_sequence] expected x {}, found {}",
                 batch_first ? "[N, T, ...]" : "[T, N, ...]",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  const Tensor steps = batch_first ? x.transpose(0, 1) : x;
  const std::int64_t longest = steps.size(0), n = steps.size(1);
  LOCKSTEP_CHECK(lengths.defined() && lengths.dim() == 1 && lengths.numel() == n && lengths.dtype() == kInt64 &&
                     lengths.device().is_cpu() && n > 0,
                 "[pack_padded_sequence] expected int64 lengths [{}] on the CPU, one for each sequence, found {}", n,
                 lengths.defined() ? to_string(lengths.sizes()) : "an undefined tensor");
  const std::vector<std::int64_t> given = lengths.to_vector<std::int64_t>();
  for (const std::int64_t length : given)
    LOCKSTEP_CHECK(length >= 1 && length <= longest,
                   "[pack_padded_sequence] expected lengths of at least 1 and at most the {} steps of x, found {}",
                   longest, length);
  std::vector<std::int64_t> order(given.size()), place(given.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [](std::vector<std::int64_t>& values, std::int64_t i) -> std::int64_t& {
    return values[static_cast<std::size_t>(i)];
  };
  const auto length_of = [&](std::int64_t i) { return given[static_cast<std::size_t>(i)]; };
  PackedSequence packed;
  if (enforce_sorted) {
    LOCKSTEP_CHECK(std::is_sorted(given.rbegin(), given.rend()),
                   "[pack_padded_sequence] the lengths rise; sort the sequences, the longest first, or give "
                   "enforce_sorted = false");
  } else {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return length_of(a) > length_of(b); });
    for (std::int64_t i = 0; i < n; ++i) at(place, at(order, i)) = i;
    packed.sorted_indices = tensor(order).to(x.device());
    packed.unsorted_indices = tensor(place).to(x.device());
  }
  std::vector<std::int64_t> rows, sizes;
  for (std::int64_t t = 0; t < length_of(order.front()); ++t) {
    std::int64_t count = 0;
    while (count < n && length_of(at(order, count)) > t) rows.push_back(t * n + at(order, count++));
    sizes.push_back(count);
  }
  packed.data = rows_of(steps.reshape(with_first(steps, {longest * n}, 2)), rows);
  packed.batch_sizes = tensor(sizes);
  return packed;
}

PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted) {
  std::vector<std::int64_t> lengths;
  const Tensor padded = pad_sequence(sequences);
  for (const Tensor& sequence : sequences) lengths.push_back(sequence.size(0));
  return pack_padded_sequence(padded, tensor(lengths), false, enforce_sorted);
}

std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed, bool batch_first, double padding_value,
                                              std::optional<std::int64_t> total_length) {
  LOCKSTEP_CHECK(packed.data.defined() && packed.batch_sizes.defined() && packed.batch_sizes.numel() > 0,
                 "[pad_packed_sequence] the packed sequence is empty");
  const std::vector<std::int64_t> sizes = packed.batch_sizes.to_vector<std::int64_t>();
  const auto longest = static_cast<std::int64_t>(sizes.size());
  const std::int64_t steps = total_length.value_or(longest), n = sizes.front(), end = packed.data.size(0);
  LOCKSTEP_CHECK(steps >= longest,
                 "[pad_packed_sequence] expected a total_length of at least {}, the longest, found {}", longest, steps);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(steps * n), end), lengths(static_cast<std::size_t>(n), 0);
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < longest; ++t)
    for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(t)]; ++i) {
      rows[static_cast<std::size_t>(t * n + i)] = next++;
      ++lengths[static_cast<std::size_t>(i)];
    }
  const Tensor padding = full(with_first(packed.data, {1}, 1), padding_value, options_of(packed.data));
  Tensor x = rows_of(cat({packed.data, padding}), rows).view(with_first(packed.data, {steps, n}, 1));
  Tensor counts = tensor(lengths);
  if (packed.unsorted_indices.defined()) {
    x = x.index_select(1, packed.unsorted_indices);
    counts = counts.index_select(0, packed.unsorted_indices.cpu());
  }
  return {batch_first ? x.transpose(0, 1) : x, counts};
}

Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first, double padding_value) {
  LOCKSTEP_CHECK(!sequences.empty(), "[pad_sequence] expected at least one sequence");
  std::int64_t longest = 0;
  for (const Tensor& sequence : sequences) {
    LOCKSTEP_CHECK(sequence.defined() && sequence.dim() > 0, "[pad_sequence] expected sequences [T, ...]");
    longest = std::max(longest, sequence.size(0));
  }
  std::vector<Tensor> padded;
  for (const Tensor& sequence : sequences) {
    const std::int64_t missing = longest - sequence.size(0);
    padded.push_back(
        missing == 0 ? sequence
                     : cat({sequence, full(with_first(sequence, {missing}, 1), padding_value, options_of(sequence))}));
  }
  return stack(padded, batch_first ? 0 : 1);
}

}  // namespace utils::rnn

namespace {

using utils::rnn::PackedSequence;

/// Steps that as many sequences have, one after the other.
struct Stretch {
  std::int64_t steps = 0, count = 0, first = 0;  // first: the row of the data
};

std::vector<Stretch> stretches_of(const PackedSequence& packed) {
  std::vector<Stretch> stretches;
  std::int64_t row = 0;
  for (const std::int64_t count : packed.batch_sizes.to_vector<std::int64_t>()) {
    if (stretches.empty() || stretches.back().count != count) stretches.push_back({0, count, row});
    ++stretches.back().steps;
    row += count;
  }
  return stretches;
}

Tensor first_rows(const Tensor& x, std::int64_t count) {
  return x.defined() && x.size(0) != count ? x.narrow(0, 0, count) : x;
}

/// A state whose first rows are `changed`.
Tensor with_rows(const Tensor& changed, const Tensor& state, std::int64_t n) {
  if (!changed.defined() || changed.size(0) == n) return changed;
  return cat({changed, state.narrow(0, changed.size(0), n - changed.size(0))});
}

/// recurrent() over packed sequences: stretch by stretch, with the states of those that have ended, or, from the end,
/// not begun, left as they are.
RecurrentResult over_packed(RecurrentCell cell, const Tensor& data, const std::vector<Stretch>& stretches,
                            CellState state, const CellWeights& weights, bool reverse) {
  const std::int64_t n = stretches.front().count;
  std::vector<Tensor> outputs(stretches.size());
  for (std::size_t k = 0; k < stretches.size(); ++k) {
    const std::size_t i = reverse ? stretches.size() - 1 - k : k;
    const Stretch& stretch = stretches[i];
    const Tensor x =
        data.narrow(0, stretch.first, stretch.steps * stretch.count).view({stretch.steps, stretch.count, data.size(1)});
    const RecurrentResult result =
        recurrent(cell, x, {first_rows(state.h, stretch.count), first_rows(state.c, stretch.count)}, weights, reverse);
    outputs[i] = result.output.reshape({stretch.steps * stretch.count, result.output.size(2)});
    state = {with_rows(result.state.h, state.h, n), with_rows(result.state.c, state.c, n)};
  }
  return {outputs.size() == 1 ? outputs[0] : cat(outputs), state};
}

Tensor reordered(const Tensor& state, const Tensor& order) {
  return state.defined() && order.defined() ? state.index_select(1, order) : state;
}

}  // namespace

std::pair<PackedSequence, LSTMState> RecurrentLayers::run(const PackedSequence& packed, const LSTMState& given,
                                                          bool is_training) const {
  LOCKSTEP_CHECK(packed.data.defined() && packed.batch_sizes.defined() && packed.batch_sizes.numel() > 0 &&
                     packed.data.dim() == 2 && packed.data.size(1) == in_,
                 "[{}] expected packed sequences with data [steps, {}], found {}", kind(), in_,
                 packed.data.defined() ? to_string(packed.data.sizes()) : "an undefined tensor");
  const std::vector<Stretch> stretches = stretches_of(packed);
  const std::int64_t n = stretches.front().count, both = directions(), rows = options_.num_layers * both;
  LOCKSTEP_CHECK(options_.proj_size == 0 || !given.h.defined(),
                 "[nn::LSTM] packed sequences start from an undefined h (zeros) where there is a proj_size");
  const auto start_of = [&](const Tensor& state, const char* what) {
    LOCKSTEP_CHECK(!state.defined() || state.sizes() == Shape({rows, n, width_}),
                   "[{}] expected a state {} of sizes [{}, {}, {}] (layers * directions, batch, width), found {}",
                   kind(), what, rows, n, width_, to_string(state.sizes()));
    return state.defined() ? reordered(state, packed.sorted_indices)
                           : zeros({rows, n, width_}, options_of(packed.data));
  };
  const Tensor start_h = start_of(given.h, "h"),
               start_c = cell_ == RecurrentCell::lstm ? start_of(given.c, "c") : Tensor();
  Tensor x = packed.data;
  std::vector<Tensor> h, c;
  for (std::int64_t layer = 0; layer < options_.num_layers; ++layer) {
    if (layer > 0 && options_.dropout > 0.0) x = dropout(x, options_.dropout, is_training);
    std::vector<Tensor> outputs;
    for (std::int64_t direction = 0; direction < both; ++direction) {
      const std::int64_t row = layer * both + direction;
      const CellState start{start_h.select(0, row), start_c.defined() ? start_c.select(0, row) : start_c};
      RecurrentResult result = over_packed(cell_, x, stretches, start, weights_of(row), direction == 1);
      project(result, row);
      outputs.push_back(result.output);
      h.push_back(result.state.h);
      if (result.state.c.defined()) c.push_back(result.state.c);
    }
    x = outputs.size() == 1 ? outputs[0] : cat(outputs, 1);
  }
  PackedSequence output = packed;
  output.data = x;
  return {output,
          {reordered(stack(h), packed.unsorted_indices),
           c.empty() ? Tensor() : reordered(stack(c), packed.unsorted_indices)}};
}

std::pair<PackedSequence, Hidden> RNN::forward_with_packed_input(const PackedSequence& x, const Hidden& start) {
  const auto [output, state] = run(x, {start, {}}, is_training());
  return {output, state.h};
}
std::pair<PackedSequence, LSTMState> LSTM::forward_with_packed_input(const PackedSequence& x, const LSTMState& start) {
  return run(x, start, is_training());
}
std::pair<PackedSequence, Hidden> GRU::forward_with_packed_input(const PackedSequence& x, const Hidden& start) {
  const auto [output, state] = run(x, {start, {}}, is_training());
  return {output, state.h};
}

}  // namespace lockstep::nn
