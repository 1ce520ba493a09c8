#pragma once

#include <lockstep/lockstep.h>

namespace lockstep::bench {

/// An LSTM (Hochreiter and Schmidhuber, 1997) over the rows of images of 1 x 28 x 28, written out gate by gate.
struct Lstm : nn::Module {
  static constexpr std::int64_t kWidth = 128;

  Tensor forward(Tensor x) override {
    const Tensor rows = x.squeeze(1);
    Tensor h = zeros({x.size(0), kWidth}), c = zeros({x.size(0), kWidth});
    for (std::int64_t t = 0; t < rows.size(1); ++t) {
      const std::vector<Tensor> gates = (of_input(rows.select(1, t)) + of_state(h)).chunk(4, 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
    }
    return head(h);
  }

  nn::Linear of_input{this, "of_input", 28, 4 * kWidth}, of_state{this, "of_state", kWidth, 4 * kWidth};
  nn::Linear head{this, "head", kWidth, 10};
};

/// The same by the library's layer.
struct LstmLayer : nn::Module {
  Tensor forward(Tensor x) override { return head(lstm(x.squeeze(1)).first.select(1, -1)); }

  nn::LSTM lstm{this, "lstm", 28, Lstm::kWidth, {.batch_first = true}};
  nn::Linear head{this, "head", Lstm::kWidth, 10};
};

}  // namespace lockstep::bench
