#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/nn/optim/gradients.h"

namespace lockstep::optim::detail {
namespace {

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

/// grad[i] = change(grad[i]) in place.
template <typename Change>
void change_each(const Tensor& grad, const char* op, Change&& change) {
  const auto loop = cpu::plan_loop<1>(grad.sizes(), {&grad});
  dispatch_floating(grad.dtype(), op, [&]<typename T>() {
    T* data = grad.data<T>();
    cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
      T* row = data + offset[0];
      for (std::int64_t i = 0; i < length; ++i)
        row[i * stride[0]] = static_cast<T>(change(static_cast<compute_t<T>>(row[i * stride[0]])));
    });
  });
}

}  // namespace

double sum_of_squares(const Tensor& grad) {
  const Tensor dense = as_contiguous(grad);
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

void grad_norm_cpu(const Gradients& gradients, double max_norm, const Tensor& norm) {
  double sum = 0.0;
  for (const Tensor& grad : gradients) sum += sum_of_squares(grad);
  double* result = norm.data<double>();
  result[0] = std::sqrt(sum);
  result[1] = max_norm / (result[0] + 1e-6);
}

std::vector<double> gradient_squares(const std::vector<Tensor>& parameters) {
  std::vector<double> squares;
  for (const Tensor& p : parameters) {
    const Tensor grad = p.grad();
    squares.push_back(grad.defined() && grad.numel() > 0 ? sum_of_squares(move_values(grad, Device(kCPU))) : 0.0);
  }
  return squares;
}

void grad_scale_cpu(const Gradients& gradients, const Tensor& norm) {
  const double scale = norm.data<double>()[1];
  if (scale >= 1.0) return;
  for (const Tensor& grad : gradients)
    change_each(grad, "clip_grad_norm_", [scale](auto x) { return x * static_cast<decltype(x)>(scale); });
}

void grad_clamp_cpu(const Gradients& gradients, double limit) {
  for (const Tensor& grad : gradients)
    change_each(grad, "clip_grad_value_", [limit](auto x) {
      const auto bound = static_cast<decltype(x)>(limit);
      return x < -bound ? -bound : x > bound ? bound : x;
    });
}

void grad_unscale_cpu(const Gradients& gradients, double factor, const Tensor& overflowed) {
  for (const Tensor& grad : gradients) {
    grad.mul_(factor);
    // Zero for finite elements, NaN for the others.
    if ((grad * 0.0).sum().item<double>() != 0.0) overflowed.data<std::int32_t>()[0] = 1;
  }
}

}  // namespace lockstep::optim::detail
