#include "lockstep/autograd/ops/recurrent/recurrent.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/recurrent/recurrent_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<CellForward> cell_kernel{"recurrent", cell_cpu, LOCKSTEP_CUDA_KERNEL(cell_cuda)};
constexpr KernelTable<CellBackward> cell_backward_kernel{"recurrent backward", cell_backward_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(cell_backward_cuda)};

constexpr KernelTable<HiddenProduct> hidden_kernel{"recurrent products", hidden_product_cpu};

/// Note [Products of a sequence]
/// Each step multiplies by the same matrix, so on a CPU it is brought into the order in which products read it once,
/// and not in each step: with few samples that takes as long as the product itself. The sums are the same, bit by bit.
class StepProducts {
 public:
  /// `matrix` [k, n] of any strides; `bias` [n] or undefined.
  StepProducts(const Tensor& matrix, const Tensor& bias, std::int64_t steps) : matrix_(matrix), bias_(bias) {
    constexpr std::int64_t kSteps = 4;  // from here on it pays
    if (steps >= kSteps && matrix.device().type == kCPU && !reference_kernels() && matrix.numel() > 0)
      panels_ = prepare_hidden_cpu(matrix);
  }
  /// x * matrix + bias for x [N, k], without recording.
  Tensor operator()(const Tensor& x) const {
    if (!panels_.defined() || x.numel() == 0)
      return bias_.defined() ? linear(x, matrix_.t(), bias_) : matmul(x, matrix_);
    const Tensor result = empty({x.size(0), matrix_.size(1)}, options_of(x));
    hidden_kernel(x)(x, panels_, bias_, result);
    return result;
  }

 private:
  Tensor matrix_, bias_, panels_;
};

int gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

/// Step number k of T, in the order in which they are computed.
struct Order {
  std::int64_t steps;
  bool reverse;
  std::int64_t at(std::int64_t k) const { return reverse ? steps - 1 - k : k; }
};

/// x[t], which takes no part in autograd.
Tensor step_of(const Tensor& x, std::int64_t t) {
  return x.select(0, t);
}

/// Inputs: products of x [T, N, gates H], h and c of the start, W_hh, b_hh. Outputs: h of every step, of the last, and
/// c of the last.
class RecurrentBackward final : public Node {
 public:
  const char* name() const override { return "RecurrentBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result(5);
    const Tensor &output = saved(0), &h_start = saved(1), &c_start = saved(2), &weight = saved(3), &reserve = saved(4),
                 &states = saved(5);
    const bool lstm = cell == RecurrentCell::lstm, gru = cell == RecurrentCell::gru;
    const std::int64_t n = output.size(1), width = output.size(2), gates = gates_of(cell);
    const Tensor input_grad = empty({order.steps, n, gates * width}, options_of(output));
    const Tensor hidden_grad = gru ? empty_like(input_grad) : input_grad;
    Tensor h_grad = grads[1].defined() ? grads[1] : zeros({n, width}, options_of(output));
    Tensor c_grad;
    if (lstm) c_grad = grads[2].defined() ? copy_contiguous(grads[2]) : zeros({n, width}, options_of(output));
    const StepProducts before(weight, {}, order.steps);
    for (std::int64_t k = order.steps - 1; k >= 0; --k) {
      const std::int64_t t = order.at(k);
      CellGradient step;
      step.h_grad = as_contiguous(grads[0].defined() ? h_grad + step_of(grads[0], t) : h_grad);
      step.c_grad = c_grad;
      if (reserve.defined()) step.reserve = step_of(reserve, t);
      if (gru) step.h_before = k == 0 ? h_start : step_of(output, order.at(k - 1));
      if (lstm) step.c_before = k == 0 ? c_start : step_of(states, order.at(k - 1));
      if (lstm) step.c = step_of(states, t);
      if (!lstm && !gru) step.h = step_of(output, t);
      step.input_grad = step_of(input_grad, t);
      step.hidden_grad = step_of(hidden_grad, t);
      if (gru) step.h_before_grad = empty({n, width}, options_of(output));
      cell_backward_kernel(step.h_grad)(cell, step);
      if (k == 0 && !needs_grad(1)) break;
      h_grad = before(step.hidden_grad);
      if (gru) h_grad = h_grad + step.h_before_grad;
    }
    if (needs_grad(0)) result[0] = input_grad;
    if (needs_grad(1)) result[1] = h_grad;
    if (lstm && needs_grad(2)) result[2] = c_grad;
    const Tensor rows = hidden_grad.view({order.steps * n, gates * width});
    if (needs_grad(3)) result[3] = matmul(rows.t(), before_each_step(output, h_start).view({order.steps * n, width}));
    if (needs_grad(4)) result[4] = sum(rows, {0});
    return result;
  }

  RecurrentCell cell = RecurrentCell::lstm;
  Order order{};

 private:
  /// h before each step, in the places of the steps.
  Tensor before_each_step(const Tensor& output, const Tensor& start) const {
    const Tensor before = empty_like(output);
    copy_values(start, step_of(before, order.at(0)));
    if (order.steps > 1)
      copy_values(output.narrow(0, order.reverse ? 1 : 0, order.steps - 1),
                  before.narrow(0, order.reverse ? 0 : 1, order.steps - 1));
    return before;
  }
};

void check_weight(const Tensor& weight, const Shape& sizes, const Tensor& x, const char* what) {
  LOCKSTEP_CHECK(weight.sizes() == sizes, "[recurrent] expected {} of sizes {}, found {}", what, to_string(sizes),
                 to_string(weight.sizes()));
  LOCKSTEP_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device(),
                 "[recurrent] expected {} of dtype {} on {} as x, found {} on {}", what, name(x.dtype()),
                 to_string(x.device()), name(weight.dtype()), to_string(weight.device()));
}

void check(RecurrentCell cell, const Tensor& x, const CellState& start, const CellWeights& weights) {
  LOCKSTEP_CHECK(x.defined() && x.dim() == 3 && x.is_floating_point(),
                 "[recurrent] expected a floating-point x [steps, batch, width], found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(x.size(0) > 0, "[recurrent] expected at least one step, found x of sizes {}", to_string(x.sizes()));
  LOCKSTEP_CHECK(weights.weight_ih.defined() && weights.weight_hh.defined() && weights.weight_hh.dim() == 2,
                 "[recurrent] expected weights [gates * H, in] and [gates * H, H]");
  const std::int64_t width = weights.weight_hh.size(1), gates = gates_of(cell) * width;
  check_weight(weights.weight_ih, {gates, x.size(2)}, x, "weight_ih");
  check_weight(weights.weight_hh, {gates, width}, x, "weight_hh");
  if (weights.bias_ih.defined()) check_weight(weights.bias_ih, {gates}, x, "bias_ih");
  if (weights.bias_hh.defined()) check_weight(weights.bias_hh, {gates}, x, "bias_hh");
  if (start.h.defined()) check_weight(start.h, {x.size(1), width}, x, "a state h");
  if (start.c.defined()) check_weight(start.c, {x.size(1), width}, x, "a state c");
  LOCKSTEP_CHECK(cell == RecurrentCell::lstm || !start.c.defined(), "[recurrent] a state c is for an lstm alone");
}

Tensor low_or_undefined(const Tensor& tensor) {
  return tensor.defined() ? autocast::low(tensor) : tensor;
}

}  // namespace

RecurrentResult recurrent(RecurrentCell cell, const Tensor& x, const CellState& start, const CellWeights& weights,
                          bool reverse) {
  if (autocast::is_active) [[unlikely]] {
    const autocast::Pause pause;
    return recurrent(cell, autocast::low(x), {low_or_undefined(start.h), low_or_undefined(start.c)},
                     {low_or_undefined(weights.weight_ih), low_or_undefined(weights.weight_hh),
                      low_or_undefined(weights.bias_ih), low_or_undefined(weights.bias_hh)},
                     reverse);
  }
  check(cell, x, start, weights);
  const bool lstm = cell == RecurrentCell::lstm, gru = cell == RecurrentCell::gru;
  const Order order{x.size(0), reverse};
  const std::int64_t n = x.size(1), width = weights.weight_hh.size(1);
  const Tensor input = linear(x, weights.weight_ih, weights.bias_ih);
  const Tensor &weight = weights.weight_hh, &bias = weights.bias_hh;
  const Tensor* const inputs[] = {&input, &start.h, &start.c, &weight, &bias};
  bool recorded = GradMode::enabled();
  if (recorded) {
    recorded = false;
    for (const Tensor* each : inputs) recorded = recorded || needs_grad(*each);
  }

  const Tensor output = empty({order.steps, n, width}, options_of(x));
  const Tensor h_start = start.h.defined() ? as_contiguous(start.h.detach()) : zeros({n, width}, options_of(x));
  Tensor c_start, states, reserve;
  if (lstm) {
    c_start = start.c.defined() ? as_contiguous(start.c.detach()) : zeros({n, width}, options_of(x));
    states = empty({recorded ? order.steps : 2, n, width}, options_of(x));
  }
  if (recorded && (lstm || gru)) reserve = empty({order.steps, n, 4 * width}, options_of(x));
  RecurrentResult result{.output = output, .state = {}};
  {
    const NoGradGuard values_only;
    const Tensor products = as_contiguous(input.detach());
    const StepProducts hidden(weight.detach().t(), bias.defined() ? as_contiguous(bias.detach()) : bias, order.steps);
    CellStep step;
    step.h = h_start;
    step.c = c_start;
    for (std::int64_t k = 0; k < order.steps && output.numel() > 0; ++k) {
      const std::int64_t t = order.at(k);
      step.hidden = hidden(step.h);
      step.input = step_of(products, t);
      step.h_before = step.h;
      step.c_before = step.c;
      step.h = step_of(output, t);
      if (lstm) step.c = step_of(states, recorded ? t : k % 2);
      if (reserve.defined()) step.reserve = step_of(reserve, t);
      cell_kernel(step.h)(cell, step);
    }
    result.state.h = copy_contiguous(step.h);
    if (lstm) result.state.c = copy_contiguous(step.c);
  }
  const Tensor* const outputs[] = {&output, &result.state.h, &result.state.c};
  if (auto* node = record_many<RecurrentBackward>({outputs, static_cast<std::size_t>(lstm ? 3 : 2)}, inputs)) {
    node->cell = cell;
    node->order = order;
    node->save(output, h_start, c_start, weight, reserve, states);
  }
  return result;
}

}  // namespace lockstep
