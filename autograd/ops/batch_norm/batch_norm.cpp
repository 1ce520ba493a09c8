#include "lockstep/autograd/ops/batch_norm/batch_norm.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

class BatchNormBackward final : public Node {
 public:
  const char* name() const override { return "BatchNormBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(3);
    if (!grads[0].defined()) return result;
    const Tensor& x = saved(0);
    const Tensor& factor = saved(1);
    const ChannelStatistics statistics{saved(2), saved(3), count};
    const bool of_parameters = needs_grad(1) || needs_grad(2), wants_sums = training || of_parameters;
    if (const auto through = through_relu(grads[0]); through.values.defined()) {
      grads[0] = Tensor();
      const auto sums =
          wants_sums ? batch_norm_parts::gradient_sums(through, statistics, eps) : batch_norm_parts::GradientSums{};
      if (needs_grad(0))
        result[0] = batch_norm_parts::input_gradient(through, statistics,
                                                     training ? sums : batch_norm_parts::GradientSums{}, eps);
      give_parameters(sums, factor, result);
      return result;
    }
    const bool pooled = needs_grad(0) && wants_sums && batch_norm_parts::is_pooled_gradient(grads[0], x);
    const Tensor grad = pooled ? empty_like(x) : laid_out_like(as_contiguous(grads[0]), x);
    batch_norm_parts::GradientSums sums;
    if (pooled)
      sums = batch_norm_parts::pooled_gradient_sums(grads[0], grad, x, statistics, eps);
    else if (wants_sums)
      sums = batch_norm_parts::gradient_sums(grad, x, statistics, eps);
    if (needs_grad(0))
      result[0] = batch_norm_parts::input_gradient(grad, x, statistics, factor,
                                                   training ? sums : batch_norm_parts::GradientSums{}, eps, pooled);
    give_parameters(sums, factor, result);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const std::int64_t n = saved(0).size(0), channels = saved(0).size(1);
    const Shape planes{n, channels, n * channels == 0 ? 0 : saved(0).numel() / (n * channels)}, column{1, channels, 1};
    const Tensor x = saved_input(0, 0).reshape(planes), grad = grads[0].reshape(planes).to(x.dtype());
    const Tensor centre = x - (training ? mean(x, {0, 2}, true) : saved(2).reshape(column).to(x.dtype()));
    const Tensor var = training ? mean(square(centre), {0, 2}, true) : saved(3).reshape(column).to(x.dtype());
    const Tensor scale = rsqrt(var + eps), unit = centre * scale;
    Tensor slope = grad;
    if (saved(1).defined()) slope = grad * saved_input(1, 1).reshape(column).to(x.dtype());
    TensorList result(3);
    if (needs_grad(0)) {
      Tensor out = slope;
      if (training) out = slope - mean(slope, {0, 2}, true) - unit * mean(slope * unit, {0, 2}, true);
      result[0] = (out * scale).reshape(grads[0].sizes());
    }
    if (needs_grad(1)) result[1] = sum(grad * unit, {0, 2}).to(saved(1).dtype());
    if (needs_grad(2)) result[2] = sum(grad, {0, 2}).to(bias_dtype);
    return result;
  }

  std::int64_t count = 0;
  double eps = 0;
  bool training = false;
  DType bias_dtype = kFloat32;
  Tensor bias;  ///< for the sign of the result; not saved, since it may change before backward
  std::uint32_t bias_version = 0;

 private:
  void give_parameters(const batch_norm_parts::GradientSums& sums, const Tensor& factor, TensorList& result) const {
    if (needs_grad(1)) result[1] = cast_values(sums.weight, factor.dtype());
    if (needs_grad(2)) result[2] = cast_values(sums.bias, bias_dtype);
  }

  /// If `grad` is the pending gradient of a relu of the result, and which elements that let through can be found from
  /// the input.
  batch_norm_parts::ThroughRelu through_relu(const Tensor& grad) {
    auto* const gradient = pending_result_of<ReluGradient>(grad);
    if (!gradient || gradient->is_laid_out() || gradient->behind() != sequence()) return {};
    const bool as_it_was = !bias.defined() || (!bias.storage()->is_lent() && bias.storage()->version() == bias_version);
    if (!as_it_was || (saved(1).defined() && saved(1).storage()->is_lent())) return {};
    const auto inputs = gradient->pending_inputs();
    const Tensor x = channels_last_of(saved(0));  // another thread may have it copied into its own order at any time
    if (inputs.size() != 2 || !x.defined()) return {};
    const auto dense = [](const Tensor& t) { return t.defined() ? as_contiguous(t) : t; };
    return {inputs[0], x, dense(saved(1)), dense(bias)};
  }
};

void check_channel_tensor(const Tensor& tensor, const Tensor& input, const char* what) {
  if (!tensor.defined()) return;
  LOCKSTEP_CHECK(tensor.sizes() == Shape({input.sizes()[1]}),
                 "[batch_norm] expected {} of shape [{}] for an input of shape {}, found {}", what, input.sizes()[1],
                 to_string(input.sizes()), to_string(tensor.sizes()));
  const bool half = input.dtype() == kFloat16 || input.dtype() == kBFloat16;
  LOCKSTEP_CHECK(tensor.dtype() == input.dtype() || (half && tensor.dtype() == kFloat32),
                 "[batch_norm] expected {} of dtype {} like the input{}, found {}", what, name(input.dtype()),
                 half ? ", or float32" : "", name(tensor.dtype()));
  LOCKSTEP_CHECK(tensor.device() == input.device(), "[batch_norm] {} is on {}, the input on {}; move one with to()",
                 what, to_string(tensor.device()), to_string(input.device()));
}

void check_running(const Tensor& tensor, const Tensor& input, const char* what) {
  check_channel_tensor(tensor, input, what);
  if (!tensor.defined()) return;
  LOCKSTEP_CHECK(!needs_grad(tensor), "[batch_norm] {} must not require gradients", what);
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                  const BatchNormOptions& options) {
  if (autocast::is_active && !batch_norm_parts::stays_half(input)) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return batch_norm(x, running_mean, running_var, options); }, input);
  LOCKSTEP_CHECK(input.defined(), "[batch_norm] input is undefined");
  LOCKSTEP_CHECK(input.is_floating_point(), "[batch_norm] expected a floating-point input, found {}",
                 name(input.dtype()));
  LOCKSTEP_CHECK(input.dim() >= 2, "[batch_norm] expected an input of shape [N, C] or [N, C, d1, ...], found {}",
                 to_string(input.sizes()));
  LOCKSTEP_CHECK(options.eps >= 0.0, "[batch_norm] eps is {}, expected a value of at least 0", options.eps);
  check_running(running_mean, input, "running_mean");
  check_running(running_var, input, "running_var");
  if (options.batches.defined())
    LOCKSTEP_CHECK(options.batches.numel() == 1 && options.batches.dtype() == kInt64 &&
                       options.batches.device() == input.device() && options.batches.is_contiguous(),
                   "[batch_norm] expected one int64 on {} for the number of batches, found {} of shape {} on {}",
                   to_string(input.device()), name(options.batches.dtype()), to_string(options.batches.sizes()),
                   to_string(options.batches.device()));
  check_channel_tensor(options.weight, input, "weight");
  check_channel_tensor(options.bias, input, "bias");

  const bool recording = should_record({&input, &options.weight, &options.bias});
  const Tensor x = as_contiguous(input);
  ChannelStatistics statistics;
  if (options.training) {
    const std::int64_t count = input.sizes()[1] > 0 ? input.numel() / input.sizes()[1] : 0;
    LOCKSTEP_CHECK(count != 1,
                   "[batch_norm] training needs more than one value per channel, found an input of shape {}; use a "
                   "larger batch, or eval()",
                   to_string(input.sizes()));
    statistics =
        batch_norm_parts::channel_statistics(x, {running_mean, running_var, options.momentum, options.batches});
    if (count == 0 && options.batches.defined()) {  // there was nothing to compute
      const NoGradGuard no_grad;
      options.batches.add_(1);
    }
  } else {
    LOCKSTEP_CHECK(running_mean.defined() && running_var.defined(),
                   "[batch_norm] {} is undefined, and is needed outside of training",
                   running_mean.defined() ? "running_var" : "running_mean");
    const DType dtype = input.dtype() == kFloat64 ? kFloat64 : kFloat32;
    statistics = {as_contiguous(cast_values(running_mean, dtype)), as_contiguous(cast_values(running_var, dtype)), 0};
    // Later training steps change the running statistics in place; backward must see these.
    if (recording) statistics = {copy_contiguous(statistics.mean), copy_contiguous(statistics.var), 0};
  }
  const Tensor output = batch_norm_parts::normalize(x, statistics, options.weight, options.bias, options.eps);
  if (recording) {
    auto* node = record<BatchNormBackward>(output, {&input, &options.weight, &options.bias});
    node->save(x, options.weight, statistics.mean, statistics.var);
    node->count = statistics.count;
    node->eps = options.eps;
    node->training = options.training;
    if (options.bias.defined()) {
      node->bias_dtype = options.bias.dtype();
      node->bias = options.bias.detach();
      node->bias_version = options.bias.storage()->version();
    }
  }
  if (options.statistics && options.training) *options.statistics = std::move(statistics);
  return output;
}

}  // namespace lockstep
