#pragma once

// The formulas of cells for one unit of one sample, shared by every device. For kernels (.cpp and .cu) only.

#include <cmath>

#include "lockstep/autograd/ops/recurrent/recurrent_kernels.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::cells {

// Values of one unit, in the type C that is computed in.

/// The gates of an lstm: input, forget, cell, output.
template <typename C>
struct Gates {
  C i, f, g, o;
};
template <typename C>
LOCKSTEP_HOST_DEVICE inline Gates<C> lstm_gates(C i, C f, C g, C o) {
  return {math::sigmoid(i), math::sigmoid(f), math::tanh(g), math::sigmoid(o)};
}
template <typename C>
LOCKSTEP_HOST_DEVICE inline C lstm_state(const Gates<C>& at, C c_before) {
  return at.f * c_before + at.i * at.g;
}
template <typename C>
LOCKSTEP_HOST_DEVICE inline C lstm_output(const Gates<C>& at, C c) {
  return at.o * math::tanh(c);
}
/// Gradients of what went into the gates; c_grad becomes that of c_before.
template <typename C>
LOCKSTEP_HOST_DEVICE inline Gates<C> lstm_gradient(const Gates<C>& at, C c_before, C c, C h_grad, C& c_grad) {
  const C t = math::tanh(c);
  const C through = c_grad + h_grad * at.o * (C(1) - t * t);
  c_grad = through * at.f;
  return {through * at.g * (at.i * (C(1) - at.i)), through * c_before * (at.f * (C(1) - at.f)),
          through * at.i * (C(1) - at.g * at.g), h_grad * t * (at.o * (C(1) - at.o))};
}

/// Of a gru: reset, update, new, and what reset is multiplied with.
template <typename C>
struct Resets {
  C r, z, n, m;
};
/// `m` is the hidden product of the third gate.
template <typename C>
LOCKSTEP_HOST_DEVICE inline Resets<C> gru_gates(C r, C z, C n, C m) {
  const C reset = math::sigmoid(r);
  return {reset, math::sigmoid(z), math::tanh(n + reset * m), m};
}
template <typename C>
LOCKSTEP_HOST_DEVICE inline C gru_output(const Resets<C>& at, C h_before) {
  return at.n + at.z * (h_before - at.n);
}
/// Gradients of what went into reset and update, of the new gate's input (n) and hidden (m) part.
template <typename C>
LOCKSTEP_HOST_DEVICE inline Resets<C> gru_gradient(const Resets<C>& at, C h_before, C h_grad) {
  const C n = h_grad * (C(1) - at.z) * (C(1) - at.n * at.n);
  const C z = h_grad * (h_before - at.n) * (at.z * (C(1) - at.z));
  return {n * at.m * (at.r * (C(1) - at.r)), z, n, n * at.r};
}

template <typename C>
LOCKSTEP_HOST_DEVICE inline C rnn_output(C a, bool relu) {
  return relu ? (a < C(0) ? C(0) : a) : math::tanh(a);
}
template <typename C>
LOCKSTEP_HOST_DEVICE inline C rnn_gradient(C h, C h_grad, bool relu) {
  return relu ? (h > C(0) ? h_grad : C(0)) : h_grad * (C(1) - h * h);
}

/// Addresses of a step, for units counted over all samples.
template <typename T>
struct Addresses {
  const T *input, *hidden, *h_before, *c_before;
  T *h, *c, *reserve;

  explicit Addresses(const CellStep& step)
      : input(step.input.data<T>()),
        hidden(step.hidden.data<T>()),
        h_before(step.h_before.defined() ? step.h_before.data<T>() : nullptr),
        c_before(step.c_before.defined() ? step.c_before.data<T>() : nullptr),
        h(step.h.data<T>()),
        c(step.c.defined() ? step.c.data<T>() : nullptr),
        reserve(step.reserve.defined() ? step.reserve.data<T>() : nullptr) {}
};
template <typename T>
struct GradientAddresses {
  const T *h_grad, *reserve, *h_before, *c_before, *h, *c;
  T *c_grad, *input_grad, *hidden_grad, *h_before_grad;

  explicit GradientAddresses(const CellGradient& step)
      : h_grad(of(step.h_grad)),
        reserve(of(step.reserve)),
        h_before(of(step.h_before)),
        c_before(of(step.c_before)),
        h(of(step.h)),
        c(of(step.c)),
        c_grad(of(step.c_grad)),
        input_grad(of(step.input_grad)),
        hidden_grad(of(step.hidden_grad)),
        h_before_grad(of(step.h_before_grad)) {}
  static T* of(const Tensor& tensor) { return tensor.defined() ? tensor.data<T>() : nullptr; }
};

/// Element `e` of the first gate's block of a row, where rows have `gates` blocks of the width.
LOCKSTEP_HOST_DEVICE inline std::int64_t gate_at(std::int64_t row, std::int64_t unit, std::int64_t width, int gates) {
  return row * width * gates + unit;
}

/// Unit `unit` of sample `row`. `read` and `write` convert between T and C. `reserves`: a.reserve is there; a constant,
/// since stores behind a condition are slow in a vectorised loop.
template <typename C, typename T, typename Read, typename Write>
LOCKSTEP_HOST_DEVICE inline void forward_unit(bool reserves, RecurrentCell cell, const Addresses<T>& a,
                                              std::int64_t row, std::int64_t unit, std::int64_t width, Read read,
                                              Write write) {
  const std::int64_t e = row * width + unit;
  if (cell == RecurrentCell::lstm) {
    const std::int64_t k = gate_at(row, unit, width, 4);
    const Gates<C> at =
        lstm_gates<C>(read(a.input[k]) + read(a.hidden[k]), read(a.input[k + width]) + read(a.hidden[k + width]),
                      read(a.input[k + 2 * width]) + read(a.hidden[k + 2 * width]),
                      read(a.input[k + 3 * width]) + read(a.hidden[k + 3 * width]));
    const C c = lstm_state(at, read(a.c_before[e]));
    a.c[e] = write(c);
    a.h[e] = write(lstm_output(at, c));
    if (reserves) {
      a.reserve[k] = write(at.i);
      a.reserve[k + width] = write(at.f);
      a.reserve[k + 2 * width] = write(at.g);
      a.reserve[k + 3 * width] = write(at.o);
    }
  } else if (cell == RecurrentCell::gru) {
    const std::int64_t k = gate_at(row, unit, width, 3), s = gate_at(row, unit, width, 4);
    const Resets<C> at =
        gru_gates<C>(read(a.input[k]) + read(a.hidden[k]), read(a.input[k + width]) + read(a.hidden[k + width]),
                     read(a.input[k + 2 * width]), read(a.hidden[k + 2 * width]));
    a.h[e] = write(gru_output(at, read(a.h_before[e])));
    if (reserves) {
      a.reserve[s] = write(at.r);
      a.reserve[s + width] = write(at.z);
      a.reserve[s + 2 * width] = write(at.n);
      a.reserve[s + 3 * width] = write(at.m);
    }
  } else {
    a.h[e] = write(rnn_output<C>(read(a.input[e]) + read(a.hidden[e]), cell == RecurrentCell::rnn_relu));
  }
}

template <typename C, typename T, typename Read, typename Write>
LOCKSTEP_HOST_DEVICE inline void backward_unit(RecurrentCell cell, const GradientAddresses<T>& a, std::int64_t row,
                                               std::int64_t unit, std::int64_t width, Read read, Write write) {
  const std::int64_t e = row * width + unit;
  const std::int64_t s = gate_at(row, unit, width, 4);
  const C h_grad = read(a.h_grad[e]);
  if (cell == RecurrentCell::lstm) {
    const Gates<C> at{read(a.reserve[s]), read(a.reserve[s + width]), read(a.reserve[s + 2 * width]),
                      read(a.reserve[s + 3 * width])};
    C c_grad = read(a.c_grad[e]);
    const Gates<C> grad = lstm_gradient(at, read(a.c_before[e]), read(a.c[e]), h_grad, c_grad);
    a.c_grad[e] = write(c_grad);
    a.input_grad[s] = write(grad.i);
    a.input_grad[s + width] = write(grad.f);
    a.input_grad[s + 2 * width] = write(grad.g);
    a.input_grad[s + 3 * width] = write(grad.o);
  } else if (cell == RecurrentCell::gru) {
    const Resets<C> at{read(a.reserve[s]), read(a.reserve[s + width]), read(a.reserve[s + 2 * width]),
                       read(a.reserve[s + 3 * width])};
    const Resets<C> grad = gru_gradient(at, read(a.h_before[e]), h_grad);
    const std::int64_t k = gate_at(row, unit, width, 3);
    a.input_grad[k] = a.hidden_grad[k] = write(grad.r);
    a.input_grad[k + width] = a.hidden_grad[k + width] = write(grad.z);
    a.input_grad[k + 2 * width] = write(grad.n);
    a.hidden_grad[k + 2 * width] = write(grad.m);
    a.h_before_grad[e] = write(h_grad * at.z);
  } else {
    a.input_grad[e] = write(rnn_gradient<C>(read(a.h[e]), h_grad, cell == RecurrentCell::rnn_relu));
  }
}

}  // namespace lockstep::cells
