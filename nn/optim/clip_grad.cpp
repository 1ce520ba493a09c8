#include "nn/optim/clip_grad.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/copy.h"
#include "core/dispatch.h"
#include "core/elementwise.h"
#include "core/thread_pool.h"

namespace lockstep::optim {
namespace {

std::vector<Tensor> gradients(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  for (const Tensor& p : parameters)
    if (const Tensor grad = p.grad(); grad.defined() && grad.numel() > 0) grads.push_back(grad);
  return grads;
}

template <typename T>
double sum_of_squares(const T* data, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const double x = static_cast<double>(static_cast<compute_t<T>>(data[i + l]));
      lanes[l] += x * x;
    }
  for (; i < count; ++i) {
    const double x = static_cast<double>(static_cast<compute_t<T>>(data[i]));
    lanes[0] += x * x;
  }
  double sum = 0.0;
  for (double lane : lanes) sum += lane;
  return sum;
}

double sum_of_squares(const Tensor& grad) {
  const Tensor dense = as_contiguous(move_values(grad, Device()));
  constexpr std::int64_t kBlock = cpu::kElementBlock;
  std::vector<double> partial(static_cast<std::size_t>((dense.numel() + kBlock - 1) / kBlock));
  dispatch_floating(dense.dtype(), "grad_norm", [&]<typename T>() {
    const T* data = dense.data<T>();
    parallel_for(dense.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += kBlock)
        partial[static_cast<std::size_t>(begin / kBlock)] = sum_of_squares(data + begin, std::min(kBlock, end - begin));
    });
  });
  double sum = 0.0;
  for (double p : partial) sum += p;
  return sum;
}

/// grad[i] = change(grad[i]) in place.
template <typename Change>
void change_each(const Tensor& grad, const char* op, Change&& change) {
  Tensor host = move_values(grad, Device());
  const auto loop = cpu::plan_loop<1>(host.sizes(), {&host});
  dispatch_floating(host.dtype(), op, [&]<typename T>() {
    T* data = host.data<T>();
    cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
      T* row = data + offset[0];
      for (std::int64_t i = 0; i < length; ++i)
        row[i * stride[0]] = static_cast<T>(change(static_cast<compute_t<T>>(row[i * stride[0]])));
    });
  });
  if (!host.is_same(grad)) copy_values(host, grad);
  grad.storage()->bump_version();
}

}  // namespace

double grad_norm(const std::vector<Tensor>& parameters) {
  double sum = 0.0;
  for (const Tensor& grad : gradients(parameters)) sum += sum_of_squares(grad);
  return std::sqrt(sum);
}

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, bool error_if_nonfinite) {
  LOCKSTEP_CHECK(max_norm >= 0.0, "[clip_grad_norm_] expected max_norm >= 0, found {}", max_norm);
  const double norm = grad_norm(parameters);
  LOCKSTEP_CHECK(!error_if_nonfinite || std::isfinite(norm),
                 "[clip_grad_norm_] the norm of the gradients is {}; look for an overflow or a NaN in the loss", norm);
  const double scale = max_norm / (norm + 1e-6);
  if (scale >= 1.0) return norm;
  for (const Tensor& grad : gradients(parameters))
    change_each(grad, "clip_grad_norm_", [scale](auto x) { return x * static_cast<decltype(x)>(scale); });
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double limit) {
  LOCKSTEP_CHECK(limit >= 0.0, "[clip_grad_value_] expected limit >= 0, found {}", limit);
  for (const Tensor& grad : gradients(parameters))
    change_each(grad, "clip_grad_value_", [limit](auto x) {
      const auto bound = static_cast<decltype(x)>(limit);
      return x < -bound ? -bound : x > bound ? bound : x;
    });
}

}  // namespace lockstep::optim
