#include "lockstep/autograd/ops/scan/scan.h"

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<ScanKernel> scan_kernel{"scan", scan_cpu, LOCKSTEP_CUDA_KERNEL(scan_cuda)};

constexpr KernelTable<ProductKernel> product_kernel{"prod", product_cpu};

Tensor scanned(Scan scan, const Tensor& values, int dim, bool reverse = false, const Tensor& other = {}) {
  const Tensor x = as_contiguous(values), y = other.defined() ? as_contiguous(other) : other;
  const Tensor out = empty(x.sizes(), options_of(x));
  if (x.numel() == 0) return out;
  const Shape around = x.dim() == 0 ? Shape{1, 1, 1} : detail::around_dim(x.sizes(), dim);
  const NoGradGuard values_only;
  scan_kernel(x)(scan, x.detach().view(around), y.defined() ? y.detach().view(around) : y, out.view(around), reverse);
  return out;
}

/// x as `dtype`, if there is one; integers and bool as int64.
Tensor wide(const Tensor& x, std::optional<DType> dtype, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  const Tensor cast = dtype ? x.to(*dtype) : x;
  return cast.is_floating_point() ? cast : cast.to(kInt64);
}
/// What was computed in int64, in the integer type that was asked for; the rest is as it should be.
Tensor narrow(const Tensor& out, std::optional<DType> dtype) {
  return dtype ? out.to(*dtype) : out;
}

// What gradients are made of where they are to be functions again.

/// x_0 * ... * x_(i-1) along dim, or of what is behind i.
Tensor product_before(const Tensor& x, int dim, bool reverse) {
  if (reverse) return product_before(x.flip({dim}), dim, false).flip({dim});
  return cumprod(cat({ones_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, x.sizes()[dim] - 1)}, dim), dim);
}

/// Slopes that are not finite by their formula are what apply() says, without slopes of their own.
Tensor finite_or(const Tensor& slopes, Node& node, const Tensor& grad) {
  const Tensor finite = isfinite(slopes.detach());
  if (slopes.device().is_cpu() && all(finite).item<bool>()) return slopes;
  Tensor plain;
  {
    const NoGradGuard values_only;
    plain = node.apply({grad.detach()})[0];
  }
  return where(finite, slopes, plain);
}

/// r_i = grad_i + x_(i+1) r_(i+1) along dim if `reverse`, else with i - 1 for i + 1.
Tensor recurrence(const Tensor& grad, const Tensor& x, int dim, bool reverse);

/// y_i = x_(i-1) along dim, or x_(i+1) if `reverse`, and 0 where there is none.
Tensor shifted(const Tensor& x, int dim, bool reverse) {
  const std::int64_t length = x.sizes()[dim];
  const Tensor end = zeros_like(x.narrow(dim, 0, 1)), others = x.narrow(dim, reverse ? 1 : 0, length - 1);
  return reverse ? cat({others, end}, dim) : cat({end, others}, dim);
}

/// What goes from the end is read from the beginning for its gradients: s_i = h_i + x_i s_(i-1).
class RecurrenceBackward final : public Node {
 public:
  int dim = 0;
  bool reverse = false;
  const char* name() const override { return "RecurrenceBackward"; }
  TensorList apply(TensorList grads) override { return gradients(grads[0], saved(0), saved(1)); }
  TensorList apply_recorded(TensorList grads) override {
    return gradients(grads[0], saved_input(0, 1), saved_output(1));
  }

 private:
  TensorList gradients(const Tensor& grad, const Tensor& x, const Tensor& out) const {
    const Tensor sums = recurrence(grad, shifted(x, dim, reverse), dim, !reverse);
    return {sums, shifted(sums, dim, !reverse) * out};
  }
};

Tensor recurrence(const Tensor& grad, const Tensor& x, int dim, bool reverse) {
  const Tensor out = scanned(Scan::recurrence, grad, dim, reverse, x);
  if (auto* node = record<RecurrenceBackward>(out, {&grad, &x})) {
    node->dim = dim;
    node->reverse = reverse;
    node->save(x, out);
  }
  return out;
}

class CumsumBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "CumsumBackward"; }
  TensorList apply(TensorList grads) override { return {scanned(Scan::sum, grads[0], dim, true)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {apply_linear(grads[0], {[dim = dim](const Tensor& grad) { return scanned(Scan::sum, grad, dim, true); },
                                    [dim = dim](const Tensor& x) { return scanned(Scan::sum, x, dim); }})};
  }
};

/// d/dx_i = (product before i) * r_i with r_i = g_i + x_(i+1) r_(i+1): no division. Through a zero nothing passes, not
/// even what is not finite: after one the slope is 0, and before it none of what follows counts.
class CumprodBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "CumprodBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &grad = grads[0];
    if (x.sizes()[dim] == 1) return {grad};
    const Tensor slopes = mul(scanned(Scan::product_before, x, dim), scanned(Scan::recurrence, grad, dim, true, x));
    // Without a zero, slopes that are finite are those asked for.
    if (x.device().is_cpu() && all(logical_and(isfinite(slopes), logical_and(isfinite(x), ne(x, 0)))).item<bool>())
      return {slopes};
    const Tensor is_zero = eq(x, 0), zeros = scanned(Scan::sum, is_zero.to(kInt64), dim);  // so far
    const Tensor finite = isfinite(slopes) * isfinite(x), after_zero = zeros > is_zero.to(kInt64);
    if (x.device().is_cpu() && all(finite).item<bool>()) return {where(after_zero, 0, slopes)};
    return {where(after_zero, 0, where(finite, slopes, quotients(x, grad, is_zero, zeros)))};
  }
  /// Behind a zero slopes are 0, but not what they are functions of.
  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0);
    if (x.numel() == 0 || x.sizes()[dim] == 1) return {flat_in(grads[0], x)};
    return {finite_or(product_before(x, dim, false) * recurrence(grads[0], x, dim, true), *this, grads[0])};
  }

 private:
  /// PyTorch's formula, which says what the slopes that are not finite are: the sum of g_j out_j for j >= i, divided by
  /// x_i; at the first zero the sum of g_j times what follows it up to j, and all of it times what is before it.
  Tensor quotients(const Tensor& x, const Tensor& grad, const Tensor& is_zero, const Tensor& zeros) const {
    const auto sum_of = [&](const Tensor& factors, std::int64_t part) {
      const Tensor terms = where(zeros == part, mul(scanned(Scan::product, factors, dim), grad), 0);
      return scanned(Scan::sum, terms, dim, true);
    };
    const Tensor follows = where(logical_or(is_zero, zeros == 0), 1, x);
    return where(is_zero, scanned(Scan::product_before, x, dim) * sum_of(follows, 1), sum_of(x, 0) / x);
  }
};

class ProdBackward final : public Node {
 public:
  int dim = 0;
  bool of_all = false;  ///< then two zeros make every slope 0, even beside what is not finite, as in PyTorch
  const char* name() const override { return "ProdBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& x = saved(0);
    const Tensor slopes =
        grads[0] * (scanned(Scan::product_before, x, dim) * scanned(Scan::product_before, x, dim, true));
    return {of_all ? where(sum(eq(x, 0)) > 1, 0, slopes) : slopes};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0);
    if (x.numel() == 0) return {flat_in(apply(std::move(grads))[0], x)};
    const Tensor others = product_before(x, dim, false) * product_before(x, dim, true);
    return {finite_or(grads[0] * others, *this, grads[0])};
  }
};

}  // namespace

Tensor cumsum(const Tensor& values, std::int64_t dim, std::optional<DType> dtype) {
  const Tensor x = wide(values, dtype, "cumsum");
  const int d = wrap_dim(dim, x.dim(), "cumsum");
  const Tensor out = scanned(Scan::sum, x, d);
  if (auto* node = record<CumsumBackward>(out, {&x})) node->dim = d;
  return narrow(out, dtype);
}

Tensor cumprod(const Tensor& values, std::int64_t dim, std::optional<DType> dtype) {
  const Tensor x = wide(values, dtype, "cumprod");
  const int d = wrap_dim(dim, x.dim(), "cumprod");
  const Tensor out = scanned(Scan::product, x, d);
  if (auto* node = record<CumprodBackward>(out, {&x})) {
    node->dim = d;
    node->save(x);
  }
  return narrow(out, dtype);
}

namespace {

Tensor product_along(const Tensor& x, int d, bool of_all) {
  Shape sizes = x.sizes();
  sizes[d] = 1;
  Tensor out = ones(sizes, options_of(x));
  if (x.numel() > 0) {
    const NoGradGuard values_only;
    if (x.device().is_cpu())
      product_kernel(x)(as_contiguous(x).detach().view(detail::around_dim(x.sizes(), d)),
                        out.view(detail::around_dim(out.sizes(), d)));
    else
      out = copy_contiguous(scanned(Scan::product, x, d).narrow(d, x.sizes()[d] - 1, 1));
  }
  if (auto* node = record<ProdBackward>(out, {&x})) {
    node->dim = d;
    node->of_all = of_all;
    node->save(x);
  }
  return out;
}

}  // namespace

Tensor prod(const Tensor& values, std::optional<std::int64_t> dim, bool keepdim, std::optional<DType> dtype) {
  const Tensor x = wide(values, dtype, "prod");
  if (!dim || x.dim() == 0) {
    if (dim) wrap_dim(*dim, x.dim(), "prod");
    const Tensor out = product_along(x.reshape({x.numel()}), 0, !dim);
    return narrow(out.view(keepdim ? Shape::filled(x.dim(), 1) : Shape{}), dtype);
  }
  const int d = wrap_dim(*dim, x.dim(), "prod");
  const Tensor out = product_along(x, d, false);
  return narrow(keepdim ? out : out.squeeze(d), dtype);
}

}  // namespace lockstep
