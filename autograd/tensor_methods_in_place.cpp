// Methods of Tensor that write a function's result into their tensor.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/tensor.h"

namespace lockstep {
namespace {

/// Writes function(x) into x. Recorded, the function is that of a copy, since it may want its input for backward, when
/// the input has been written over.
template <typename Function>
const Tensor& write(const Tensor& x, std::initializer_list<const Tensor*> others, const char* name,
                    Function&& function) {
  bool recording = x.requires_grad();
  for (const Tensor* other : others) recording = recording || (other->defined() && other->requires_grad());
  recording = recording && GradMode::enabled();
  check_in_place(x, recording, name);
  if (recording) return x.copy_(function(clone(x)));
  const NoGradGuard values_only;
  copy_values(function(x.detach()), x);
  return x;
}

}  // namespace

const Tensor& Tensor::exp_() const {
  return write(*this, {}, "exp_", [](const Tensor& x) { return x.exp(); });
}
const Tensor& Tensor::sqrt_() const {
  return write(*this, {}, "sqrt_", [](const Tensor& x) { return x.sqrt(); });
}
const Tensor& Tensor::neg_() const {
  return write(*this, {}, "neg_", [](const Tensor& x) { return x.neg(); });
}
const Tensor& Tensor::abs_() const {
  return write(*this, {}, "abs_", [](const Tensor& x) { return x.abs(); });
}
const Tensor& Tensor::sign_() const {
  return write(*this, {}, "sign_", [](const Tensor& x) { return x.sign(); });
}
const Tensor& Tensor::relu_() const {
  return write(*this, {}, "relu_", [](const Tensor& x) { return x.relu(); });
}
const Tensor& Tensor::pow_(double exponent) const {
  return write(*this, {}, "pow_", [=](const Tensor& x) { return x.pow(exponent); });
}
const Tensor& Tensor::lerp_(const Tensor& end, double weight) const {
  return write(*this, {&end}, "lerp_", [&](const Tensor& x) { return lerp(x, end, weight); });
}
const Tensor& Tensor::addcmul_(const Tensor& a, const Tensor& b, double value) const {
  return write(*this, {&a, &b}, "addcmul_", [&](const Tensor& x) { return x.add(a * b, value); });
}
const Tensor& Tensor::addcdiv_(const Tensor& a, const Tensor& b, double value) const {
  return write(*this, {&a, &b}, "addcdiv_", [&](const Tensor& x) { return x.add(a / b, value); });
}
const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return write(*this, {&source}, "scatter_", [&](const Tensor& x) { return x.scatter(dim, index, source); });
}
const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, Scalar value) const {
  return write(*this, {}, "scatter_", [&](const Tensor& x) { return x.scatter(dim, index, value); });
}
const Tensor& Tensor::scatter_add_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return write(*this, {&source}, "scatter_add_", [&](const Tensor& x) { return x.scatter_add(dim, index, source); });
}
const Tensor& Tensor::index_add_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return write(*this, {&source}, "index_add_", [&](const Tensor& x) { return x.index_add(dim, index, source); });
}

}  // namespace lockstep
