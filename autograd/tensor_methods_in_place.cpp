// Methods of Tensor that write a function's result into their tensor.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"

namespace lockstep {
namespace {

/// Writes function(x) into x. Recorded, the function is that of a copy, since it may want its input for backward, when
/// the input has been written over.
template <typename Function>
const Tensor& write(const Tensor& x, std::initializer_list<const Tensor*> others, const char* name,
                    Function&& function) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", name);
  bool recording = x.requires_grad();
  for (const Tensor* other : others) recording = recording || (other->defined() && other->requires_grad());
  recording = recording && GradMode::enabled();
  if (recording) {
    check_in_place(x, recording, name);
    const Tensor result = function(clone(x));
    check_result_fits(result.dtype(), x, name);
    return replace_values(x, result, name);
  }
  const NoGradGuard values_only;
  const Tensor result = function(x.detach());  // what throws has written nothing
  check_result_fits(result.dtype(), x, name);
  check_in_place(x, recording, name);
  copy_values(result, x);
  return x;
}

/// Writes numbers that function(x) draws, whatever the values of x are, into x. Recorded, the gradient of x is 0.
template <typename Function>
const Tensor& draw(const Tensor& x, const char* name, Function&& function) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", name);
  check_in_place(x, GradMode::enabled() && x.requires_grad(), name);
  Tensor drawn;
  {
    const NoGradGuard values_only;
    drawn = function(x.detach());
  }
  return write_values(x, drawn, name);
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
const Tensor& Tensor::addcmul_(const Tensor& a, const Tensor& b, double value) const {
  if (binary::add_term_in_place(BinaryOp::mul, *this, a, b, value, "addcmul_")) return *this;
  return write(*this, {&a, &b}, "addcmul_", [&](const Tensor& x) { return lockstep::addcmul(x, a, b, value); });
}
const Tensor& Tensor::addcdiv_(const Tensor& a, const Tensor& b, double value) const {
  if (binary::add_term_in_place(BinaryOp::div, *this, a, b, value, "addcdiv_")) return *this;
  return write(*this, {&a, &b}, "addcdiv_", [&](const Tensor& x) { return lockstep::addcdiv(x, a, b, value); });
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

const Tensor& TensorMethods::log_() const {
  return write(self(), {}, "log_", [](const Tensor& x) { return x.log(); });
}
const Tensor& TensorMethods::tanh_() const {
  return write(self(), {}, "tanh_", [](const Tensor& x) { return x.tanh(); });
}
const Tensor& TensorMethods::sigmoid_() const {
  return write(self(), {}, "sigmoid_", [](const Tensor& x) { return x.sigmoid(); });
}
const Tensor& TensorMethods::square_() const {
  return write(self(), {}, "square_", [](const Tensor& x) { return x.square(); });
}
const Tensor& TensorMethods::rsqrt_() const {
  return write(self(), {}, "rsqrt_", [](const Tensor& x) { return x.rsqrt(); });
}
const Tensor& TensorMethods::reciprocal_() const {
  return write(self(), {}, "reciprocal_", [](const Tensor& x) { return x.reciprocal(); });
}
const Tensor& TensorMethods::floor_() const {
  return write(self(), {}, "floor_", [](const Tensor& x) { return x.floor(); });
}
const Tensor& TensorMethods::ceil_() const {
  return write(self(), {}, "ceil_", [](const Tensor& x) { return x.ceil(); });
}
const Tensor& TensorMethods::round_() const {
  return write(self(), {}, "round_", [](const Tensor& x) { return x.round(); });
}
const Tensor& TensorMethods::clamp_min_(Scalar min) const {
  return write(self(), {}, "clamp_min_", [=](const Tensor& x) { return x.clamp_min(min); });
}
const Tensor& TensorMethods::clamp_max_(Scalar max) const {
  return write(self(), {}, "clamp_max_", [=](const Tensor& x) { return x.clamp_max(max); });
}
const Tensor& TensorMethods::index_fill_(std::int64_t dim, const Tensor& index, Scalar value) const {
  return write(self(), {}, "index_fill_", [&](const Tensor& x) { return x.index_fill(dim, index, value); });
}
const Tensor& TensorMethods::index_copy_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return write(self(), {&source}, "index_copy_", [&](const Tensor& x) { return x.index_copy(dim, index, source); });
}
const Tensor& TensorMethods::masked_scatter_(const Tensor& mask, const Tensor& source) const {
  return write(self(), {&source}, "masked_scatter_", [&](const Tensor& x) { return x.masked_scatter(mask, source); });
}
const Tensor& TensorMethods::random_(std::int64_t low, std::int64_t high) const {
  return draw(self(), "random_", [=](const Tensor& x) { return randint(low, high, x.sizes(), x.options()); });
}
const Tensor& TensorMethods::bernoulli_(double p) const {
  return draw(self(), "bernoulli_", [=](const Tensor& x) { return lockstep::bernoulli(x, p); });
}
const Tensor& TensorMethods::bernoulli_(const Tensor& p) const {
  return draw(self(), "bernoulli_", [&](const Tensor& x) {
    LOCKSTEP_CHECK(p.defined(), "[bernoulli_] the tensor of probabilities is undefined");
    return lockstep::bernoulli(p.detach().expand(x.sizes())).to(x.dtype());
  });
}
const Tensor& TensorMethods::exponential_(double lambd) const {
  return draw(self(), "exponential_",
              [=](const Tensor& x) { return detail::exponential(x.sizes(), lambd, x.options()); });
}

}  // namespace lockstep
