#include "lockstep/autograd/ops/reduce/reduce.h"

#include <algorithm>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce_dims.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr KernelTable<ReduceKernel> reduce_kernel{"reduce", reduce_cpu, LOCKSTEP_CUDA_KERNEL(reduce_cuda)};
constexpr KernelTable<ArgReduceKernel> arg_reduce_kernel{"arg_reduce", arg_reduce_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(arg_reduce_cuda)};
// Other devices, and the reference, make it of other operations.
constexpr KernelTable<ExtremeGradientKernel> extreme_gradient_kernel{"extreme_gradient", extreme_gradient_cpu};

/// `x`, read as it lies in memory (Note [Channels last]).
Tensor as_it_lies(const Tensor& x) {
  const Tensor values = channels_last_of(x);
  return values.defined() ? in_order_of_channels(values) : x;
}

void reduce(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out) {
  if (!reduce_elements(op, x, about, divisor, out)) reduce_kernel(x)(op, as_it_lies(x), about, divisor, out);
}

Tensor run(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const ReduceDims& dims, DType dtype) {
  Tensor out = empty(dims.result_sizes, {.dtype = dtype, .device = x.device()});
  reduce(op, x, about, divisor, dims.with_kept_dims(out));
  return out;
}

/// The same with the reduced dimensions kept, for further work on x.
Tensor run_kept(ReduceOp op, const Tensor& x, double divisor, const ReduceDims& dims, DType dtype) {
  Tensor out = empty(dims.kept_sizes, {.dtype = dtype, .device = x.device()});
  reduce(op, x, nullptr, divisor, out);
  return out;
}

/// In which intermediate results on x are kept.
DType wide(const Tensor& x) {
  return x.dtype() == kFloat64 ? kFloat64 : kFloat32;
}

void check_floating(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(!x.defined() || x.is_floating_point(),
                 "[{}] expected a floating-point tensor, found {}; convert it with to(kFloat32)", op, name(x.dtype()));
}

void check_terms(const ReduceDims& dims, const char* op) {
  LOCKSTEP_CHECK(dims.count > 0 || dims.result_sizes.numel() == 0,
                 "[{}] shape {} has no elements along the reduced dimensions", op, to_string(dims.sizes));
}

class SumBackward final : public Node {
 public:
  const char* name() const override { return "SumBackward"; }
  TensorList apply(TensorList grads) override { return {dims.spread(grads[0])}; }
  TensorList apply_recorded(TensorList grads) override {
    return {grads[0].reshape(dims.kept_sizes).expand(dims.sizes)};
  }

  ReduceDims dims;
};

class MeanBackward final : public Node {
 public:
  const char* name() const override { return "MeanBackward"; }
  TensorList apply(TensorList grads) override {
    return {dims.spread(binary_values(BinaryOp::div, grads[0], static_cast<double>(dims.count)))};
  }
  TensorList apply_recorded(TensorList grads) override {
    return {(grads[0] / static_cast<double>(dims.count)).reshape(dims.kept_sizes).expand(dims.sizes)};
  }

  ReduceDims dims;
};

class VarBackward final : public Node {
 public:
  const char* name() const override { return "VarBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &input = saved(0), &mean = saved(1);
    if (every && divisor <= 0) {
      const Tensor infinite = full(input.sizes(), std::numeric_limits<double>::infinity(), options_of(input));
      const Tensor factor = where(eq(input, mean), std::numeric_limits<double>::quiet_NaN(), infinite);
      return {binary_values(BinaryOp::mul, factor, dims.with_kept_dims(grads[0]))};
    }
    const Tensor scaled = binary_values(BinaryOp::mul, dims.with_kept_dims(grads[0]), 2.0 / divisor);
    const Tensor centred = binary_values(BinaryOp::add, input, mean, -1.0);
    return {cast_values(binary_values(BinaryOp::mul, centred, scaled), input.dtype())};
  }
  TensorList apply_recorded(TensorList grads) override {
    const auto centre = [dims = dims](const Tensor& x) {
      const Tensor mean = run_kept(ReduceOp::sum, x, static_cast<double>(dims.count), dims, wide(x));
      return cast_values(binary_values(BinaryOp::add, x, mean, -1.0), x.dtype());
    };
    return {apply_linear(saved_input(0, 0), {centre, centre}) *
            (grads[0].reshape(dims.kept_sizes) * (2.0 / (every ? std::max(divisor, 0.0) : divisor)))};
  }

  double divisor = 1.0;
  bool every = false;  // no dimensions were named; PyTorch then has a limit for a divisor of 0 or less
  ReduceDims dims;
};

/// max and min.
class ExtremeBackward final : public Node {
 public:
  const char* name() const override { return "ExtremeBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &y = saved(1);
    if (const auto [length, inner] = dims.as_middle(); length > 0 && has_kernel(x)) {
      Tensor out = empty(x.sizes(), options_of(x));
      extreme_gradient_kernel(x)(as_contiguous(x), as_contiguous(y), as_contiguous(grads[0]), out, length, inner,
                                 every);
      return {out};
    }
    const Tensor hits = every ? same_values(x, y) : eq(x, dims.with_kept_dims(y));
    const Tensor count = run_kept(ReduceOp::sum, hits, 1.0, dims, kInt64);
    const Tensor share = binary_values(BinaryOp::div, dims.with_kept_dims(grads[0]), count);
    return {every ? where(hits, share, 0.0) : binary_values(BinaryOp::mul, hits, share)};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor ones = full(dims.result_sizes, 1.0, options_of(saved(0)));
    const Tensor share = apply({ones})[0];
    const Tensor slopes = flat_in(share, saved_input(0, 0)) * grads[0].reshape(dims.kept_sizes);
    return {every ? where(share == 0.0, 0.0, slopes) : slopes};
  }

  bool every = false;  // no dimensions were named: NaNs share the gradient; else all of it is NaN, as PyTorch's
  ReduceDims dims;

 private:
  static bool has_kernel(const Tensor& x) {
    return x.device().is_cpu() && !reference_kernels() && (x.dtype() == kFloat32 || x.dtype() == kFloat64);
  }
};

class LogSumExpBackward final : public Node {
 public:
  const char* name() const override { return "LogSumExpBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &y = saved(1);
    const Tensor share = binary_values(BinaryOp::exp_difference, x, dims.with_kept_dims(y));
    return {binary_values(BinaryOp::mul, share, dims.with_kept_dims(grads[0]))};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor y = saved_output(1).reshape(dims.kept_sizes);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Tensor share = exp(saved_input(0, 0) - where(y == -kInfinity, 0.0, y));  // nothing was added up: no slope
    return {share * grads[0].reshape(dims.kept_sizes)};
  }

  ReduceDims dims;
};

Tensor extreme(ReduceOp op, const Tensor& x, const Shape& dims, bool keepdim, const char* name) {
  const ReduceDims reduce(x, dims, keepdim, name);
  check_terms(reduce, name);
  Tensor out = run(op, x, nullptr, 1.0, reduce, x.dtype());
  if (auto* node = record<ExtremeBackward>(out, {&x})) {
    node->save(x, out);
    node->every = dims.empty();
    node->dims = reduce;
  }
  return out;
}

Tensor arg_extreme(bool maximum, const Tensor& x, std::optional<std::int64_t> dim, bool keepdim, const char* name) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", name);
  if (!dim) {
    const Tensor flat = as_contiguous(x.detach());
    const Tensor index = arg_extreme(maximum, flat.as_strided({x.numel()}, {1}, flat.offset()), 0, false, name);
    return keepdim ? index.as_strided(Shape::filled(x.dim(), 1), Shape::filled(x.dim(), 1), 0) : index;
  }
  const int d = wrap_dim(*dim, x.dim(), name);
  const ReduceDims reduce(x, {d}, keepdim, name);
  check_terms(reduce, name);
  Tensor out = empty(reduce.result_sizes, {.dtype = kInt64, .device = x.device()});
  if (x.dim() == 0) {
    fill_values(out, 0.0);
  } else {
    arg_reduce_kernel(x)(maximum, x, d, reduce.with_kept_dims(out));
  }
  return out;
}

Tensor truth(bool every, const Tensor& x, const Shape& dims, bool keepdim, const char* name) {
  const ReduceDims reduce(x, dims, keepdim, name);
  if (reduce.count == 0) return full(reduce.result_sizes, every ? 1.0 : 0.0, {.dtype = kBool, .device = x.device()});
  return run(every ? ReduceOp::min : ReduceOp::max, x.dtype() == kBool ? x : ne(x, 0), nullptr, 1.0, reduce, kBool);
}

}  // namespace

Tensor sum_of_squares(const Tensor& x, const Shape& dims, bool keepdim) {
  return run(ReduceOp::squared_difference, x, nullptr, 1.0, ReduceDims(x, dims, keepdim, "sum"), x.dtype());
}

void reduce_sum(const Tensor& x, const Tensor& out) {
  reduce(ReduceOp::sum, x, nullptr, 1.0, out);
}

namespace {

Tensor sum_into(const Tensor& x, const Shape& dims, bool keepdim, DType dtype) {
  const ReduceDims reduce(x, dims, keepdim, "sum");
  Tensor out = run(ReduceOp::sum, x, nullptr, 1.0, reduce, dtype);
  if (auto* node = record<SumBackward>(out, {&x})) node->dims = reduce;
  return out;
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return sum(t, dims, keepdim); }, x);
  LOCKSTEP_CHECK(x.defined(), "[sum] the tensor is undefined");
  return sum_into(x, dims, keepdim, x.is_floating_point() ? x.dtype() : kInt64);
}
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, DType dtype) {
  return sum_into(x.to(dtype), dims, keepdim, dtype);
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return mean(t, dims, keepdim); }, x);
  check_floating(x, "mean");
  const ReduceDims reduce(x, dims, keepdim, "mean");
  Tensor out = run(ReduceOp::sum, x, nullptr, static_cast<double>(reduce.count), reduce, x.dtype());
  if (auto* node = record<MeanBackward>(out, {&x})) node->dims = reduce;
  return out;
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim, DType dtype) {
  const autocast::Pause pause;
  return mean(x.to(dtype), dims, keepdim);
}

Tensor var(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return var(t, dims, correction, keepdim); }, x);
  check_floating(x, "var");
  const ReduceDims reduce(x, dims, keepdim, "var");
  const auto count = static_cast<double>(reduce.count);
  const Tensor average = run_kept(ReduceOp::sum, x, count, reduce, wide(x));
  Tensor out = run(ReduceOp::squared_difference, x, &average, std::max(0.0, count - correction), reduce, x.dtype());
  if (auto* node = record<VarBackward>(out, {&x})) {
    node->save(x, average);
    node->divisor = count - correction;
    node->every = dims.empty() || x.dim() == 0;
    node->dims = reduce;
  }
  return out;
}

Tensor max(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(ReduceOp::max, x, dims, keepdim, "max");
}
Tensor min(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(ReduceOp::min, x, dims, keepdim, "min");
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return logsumexp(t, dims, keepdim); }, x);
  if (x.defined() && !x.is_floating_point()) return logsumexp(x.to(kFloat32), dims, keepdim);
  const ReduceDims reduce(x, dims, keepdim, "logsumexp");
  if (reduce.count == 0) {
    // The sum of no exponentials is 0.
    return flat_in(full(reduce.result_sizes, -std::numeric_limits<double>::infinity(), options_of(x)), x);
  }
  const Tensor shift = run_kept(ReduceOp::max, x, 1.0, reduce, wide(x));
  Tensor out = run(ReduceOp::log_sum_exp, x, &shift, 1.0, reduce, x.dtype());
  if (auto* node = record<LogSumExpBackward>(out, {&x})) {
    node->save(x, out);
    node->dims = reduce;
  }
  return out;
}

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_extreme(true, x, dim, keepdim, "argmax");
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_extreme(false, x, dim, keepdim, "argmin");
}

Tensor all(const Tensor& x, const Shape& dims, bool keepdim) {
  return truth(true, x, dims, keepdim, "all");
}
Tensor any(const Tensor& x, const Shape& dims, bool keepdim) {
  return truth(false, x, dims, keepdim, "any");
}

Tensor Tensor::sum(const Shape& dims, bool keepdim, std::optional<DType> dtype) const {
  return dtype ? lockstep::sum(*this, dims, keepdim, *dtype) : lockstep::sum(*this, dims, keepdim);
}
Tensor Tensor::mean(const Shape& dims, bool keepdim, std::optional<DType> dtype) const {
  return dtype ? lockstep::mean(*this, dims, keepdim, *dtype) : lockstep::mean(*this, dims, keepdim);
}
Tensor Tensor::var(const Shape& dims, double correction, bool keepdim) const {
  return lockstep::var(*this, dims, correction, keepdim);
}
Tensor Tensor::max(const Shape& dims, bool keepdim) const {
  return lockstep::max(*this, dims, keepdim);
}
Tensor Tensor::min(const Shape& dims, bool keepdim) const {
  return lockstep::min(*this, dims, keepdim);
}
Tensor Tensor::logsumexp(const Shape& dims, bool keepdim) const {
  return lockstep::logsumexp(*this, dims, keepdim);
}

Tensor std(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  const Tensor variance = var(x, dims, correction, keepdim);
  if (!needs_grad(x)) return sqrt(variance);
  // sqrt's slope at 0 is infinite, and that of var 0: their product is to be 0.
  const Tensor flat = eq(variance.detach(), 0.0);
  return where(flat, 0.0, sqrt(where(flat, 1.0, variance)));
}

Tensor amax(const Tensor& x, const Shape& dims, bool keepdim) {
  return max(x, dims, keepdim);
}
Tensor amin(const Tensor& x, const Shape& dims, bool keepdim) {
  return min(x, dims, keepdim);
}

std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  return {var(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  return {std(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}

Tensor nansum(const Tensor& x, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(x.defined(), "[nansum] the tensor is undefined");
  return sum(x.is_floating_point() ? where(ne(x, x), 0.0, x) : x, dims, keepdim);
}
Tensor nanmean(const Tensor& x, const Shape& dims, bool keepdim) {
  check_floating(x, "nanmean");
  return nansum(x, dims, keepdim) / sum(eq(x, x), dims, keepdim).to(x.dtype());
}

Tensor count_nonzero(const Tensor& x, const Shape& dims) {
  return sum(ne(x, 0), dims);
}

}  // namespace lockstep
