#include "lockstep/autograd/ops/scan/scan.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<ScanKernel> scan_kernel{"scan", scan_cpu, LOCKSTEP_CUDA_KERNEL(scan_cuda)};

Tensor scanned(Scan scan, const Tensor& values, int dim, bool reverse = false, const Tensor& other = {}) {
  const Tensor x = as_contiguous(values), y = other.defined() ? as_contiguous(other) : other;
  const Tensor out = empty(x.sizes(), options_of(x));
  if (x.numel() == 0) return out;
  const Shape around = x.dim() == 0 ? Shape{1, 1, 1} : detail::around_dim(x.sizes(), dim);
  const NoGradGuard values_only;
  scan_kernel(x)(scan, x.detach().view(around), y.defined() ? y.detach().view(around) : y, out.view(around), reverse);
  return out;
}

/// x, integers and bool as int64.
Tensor wide(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  return x.is_floating_point() ? x : x.to(kInt64);
}

class CumsumBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "CumsumBackward"; }
  TensorList apply(TensorList grads) override { return {scanned(Scan::sum, grads[0], dim, true)}; }
};

/// d/dx_i = (product before i) * r_i with r_i = g_i + x_(i+1) r_(i+1): no division, so zeros are like others.
class CumprodBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "CumprodBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& x = saved(0);
    return {mul(scanned(Scan::product_before, x, dim), scanned(Scan::recurrence, grads[0], dim, true, x))};
  }
};

class ProdBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "ProdBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& x = saved(0);
    return {grads[0] * (scanned(Scan::product_before, x, dim) * scanned(Scan::product_before, x, dim, true))};
  }
};

}  // namespace

Tensor cumsum(const Tensor& values, std::int64_t dim) {
  const Tensor x = wide(values, "cumsum");
  const int d = wrap_dim(dim, x.dim(), "cumsum");
  const Tensor out = scanned(Scan::sum, x, d);
  if (auto* node = record<CumsumBackward>(out, {&x})) node->dim = d;
  return out;
}

Tensor cumprod(const Tensor& values, std::int64_t dim) {
  const Tensor x = wide(values, "cumprod");
  const int d = wrap_dim(dim, x.dim(), "cumprod");
  const Tensor out = scanned(Scan::product, x, d);
  if (auto* node = record<CumprodBackward>(out, {&x})) {
    node->dim = d;
    node->save(x);
  }
  return out;
}

Tensor prod(const Tensor& values, std::optional<std::int64_t> dim, bool keepdim) {
  const Tensor x = wide(values, "prod");
  if (!dim) {
    const Tensor all = prod(x.reshape({x.numel()}), 0);
    return keepdim ? all.view(Shape::filled(x.dim(), 1)) : all;
  }
  const int d = wrap_dim(*dim, x.dim(), "prod");
  if (x.dim() == 0) return prod(x.view({1}), 0);
  Shape sizes = x.sizes();
  sizes[d] = 1;
  Tensor out = ones(sizes, options_of(x));
  if (x.numel() > 0) {
    const NoGradGuard values_only;
    out = copy_contiguous(scanned(Scan::product, x, d).narrow(d, x.sizes()[d] - 1, 1));
  }
  if (auto* node = record<ProdBackward>(out, {&x})) {
    node->dim = d;
    node->save(x);
  }
  return keepdim ? out : out.squeeze(d);
}

}  // namespace lockstep
