#include "lockstep/autograd/ops/multinomial/multinomial.h"

#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/multinomial/multinomial_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/topk/topk.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::MultinomialKernel> multinomial_kernel{"multinomial", detail::multinomial_cpu,
                                                                    LOCKSTEP_CUDA_KERNEL(detail::multinomial_cuda)};

void check_values(const Tensor& rows, std::int64_t least) {
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    const double* row = rows.data<double>() + r * rows.size(1);
    std::int64_t positive = 0;
    for (std::int64_t c = 0; c < rows.size(1); ++c) {
      LOCKSTEP_CHECK(std::isfinite(row[c]) && row[c] >= 0,
                     "[multinomial] expected probabilities of 0 or more, found {} in row {}, class {}", row[c], r, c);
      if (row[c] > 0) ++positive;
    }
    LOCKSTEP_CHECK(positive >= least,
                   "[multinomial] row {} has {} classes of more than 0, and {} are to be drawn without replacement", r,
                   positive, least);
  }
}

}  // namespace

Tensor multinomial(const Tensor& probabilities, std::int64_t count, bool replacement) {
  LOCKSTEP_CHECK(probabilities.defined() && probabilities.is_floating_point() &&
                     (probabilities.dim() == 1 || probabilities.dim() == 2) && probabilities.size(-1) > 0,
                 "[multinomial] expected floating-point probabilities of shape [classes] or [rows, classes]");
  const std::int64_t classes = probabilities.size(-1);
  LOCKSTEP_CHECK(count > 0 && (replacement || count <= classes),
                 "[multinomial] expected a count between 1 and the {} classes, found {}; more need replacement",
                 classes, count);
  const NoGradGuard values_only;
  const bool single = probabilities.dim() == 1;
  const std::int64_t rows = single ? 1 : probabilities.size(0);
  const Tensor p = as_contiguous(cast_values(probabilities.detach(), kFloat64)).view({rows, classes});
  if (p.device().is_cpu()) check_values(p, replacement ? 1 : count);
  Tensor drawn;
  if (replacement) {
    drawn = empty({rows, count}, {.dtype = kInt64, .device = p.device()});
    const philox::KeySource key = next_random_key_source(RandomStream::general, p.device());
    if (rows > 0) multinomial_kernel(p)(p, drawn, key);
  } else {
    // The winners of a race in which class c needs an exponential time of rate p[c]: the largest p / e.
    const Tensor e = rand(p.sizes(), options_of(p));
    drawn = topk(p / clamp(neg(log(1.0 - e)), 0x1p-60), count, 1).indices;
  }
  return single ? drawn.view({count}) : drawn;
}

Tensor bernoulli(const Tensor& p) {
  LOCKSTEP_CHECK(p.defined() && p.is_floating_point(), "[bernoulli] expected floating-point probabilities");
  const NoGradGuard values_only;
  if (p.device().is_cpu() && p.numel() > 0) {
    const double low = min(p).item<double>(), high = max(p).item<double>();
    LOCKSTEP_CHECK(low >= 0 && high <= 1, "[bernoulli] expected probabilities in [0, 1], found {}",
                   low >= 0 ? high : low);
  }
  const DType dtype = element_size(p.dtype()) == 2 ? kFloat32 : p.dtype();
  return lt(rand(p.sizes(), {.dtype = dtype, .device = p.device()}), p).to(p.dtype());
}

Tensor bernoulli(const Tensor& like, double p) {
  LOCKSTEP_CHECK(like.defined(), "[bernoulli] the tensor is undefined");
  LOCKSTEP_CHECK(p >= 0.0 && p <= 1.0, "[bernoulli] expected a probability in [0, 1], found {}", p);
  const NoGradGuard values_only;
  const DType dtype = like.dtype() == kFloat64 ? kFloat64 : kFloat32;
  return lt(rand(like.sizes(), {.dtype = dtype, .device = like.device()}), p).to(like.dtype());
}

Tensor detail::exponential(const Shape& sizes, double lambd, const TensorOptions& options) {
  LOCKSTEP_CHECK(is_floating_point(options.dtype), "[exponential_] expected a floating-point tensor, found {}",
                 name(options.dtype));
  LOCKSTEP_CHECK(std::isfinite(lambd) && lambd > 0.0, "[exponential_] expected a finite lambd above 0, found {}",
                 lambd);
  const NoGradGuard values_only;
  const DType dtype = options.dtype == kFloat64 ? kFloat64 : kFloat32;
  const Tensor uniform = rand(sizes, {.dtype = dtype, .device = options.device});
  // 0 stands for half a step of rand().
  const Tensor times = clamp(neg(log(1.0 - uniform)), dtype == kFloat64 ? 0x1p-54 : 0x1p-25);
  return mul(times, 1.0 / lambd).to(options.dtype);
}

Tensor normal(const Tensor& mean, const Tensor& std) {
  LOCKSTEP_CHECK(mean.defined() && std.defined() && mean.is_floating_point() && mean.dtype() == std.dtype() &&
                     mean.device() == std.device(),
                 "[normal] expected means and standard deviations of one floating-point dtype on one device");
  const NoGradGuard values_only;
  const Tensor deviations = std.expand(broadcast_shapes(mean.sizes(), std.sizes(), "normal"));
  return mean + deviations * randn_like(deviations);
}

Tensor normal(const Tensor& mean, double std) {
  LOCKSTEP_CHECK(mean.defined() && mean.is_floating_point(), "[normal] expected floating-point means");
  const NoGradGuard values_only;
  return mean + randn_like(mean) * std;
}

Tensor normal(double mean, const Tensor& std) {
  LOCKSTEP_CHECK(std.defined() && std.is_floating_point(), "[normal] expected floating-point standard deviations");
  const NoGradGuard values_only;
  return std * randn_like(std) + mean;
}

}  // namespace lockstep
