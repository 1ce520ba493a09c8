#include "lockstep/autograd/ops/copy/copy.h"

#include "lockstep/autograd/ops/copy/cast_computation.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

class CloneBackward final : public Node {
 public:
  const char* name() const override { return "CloneBackward"; }
  TensorList apply(TensorList grads) override { return grads; }
  TensorList apply_recorded(TensorList grads) override { return grads; }
};

class CastBackward final : public Node {
 public:
  const char* name() const override { return "CastBackward"; }
  TensorList apply(TensorList grads) override { return {cast_in_either_order(grads[0], dtype)}; }
  TensorList apply_recorded(TensorList grads) override { return {grads[0].to(dtype)}; }

  DType dtype = kFloat32;
};

class MoveBackward final : public Node {
 public:
  const char* name() const override { return "MoveBackward"; }
  TensorList apply(TensorList grads) override { return {move_values(grads[0], device)}; }
  TensorList apply_recorded(TensorList grads) override { return {grads[0].to(device)}; }

  Device device;
};

/// Inputs: the target, whose old values are gone, so that its gradient is 0, and the source.
class CopyInPlaceBackward final : public Node {
 public:
  const char* name() const override { return "CopyInPlaceBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(0) && !replaces) results[0] = zeros_like(grads[0]);
    if (needs_grad(1)) results[1] = move_values(cast_values(sum_to(grads[0], sizes), dtype), device);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(0) && !replaces) results[0] = zeros_like(grads[0]);
    if (needs_grad(1)) results[1] = recorded_sum_to(grads[0], sizes).to(dtype).to(device);
    return results;
  }

  Shape sizes;
  DType dtype = kFloat32;
  Device device;
  bool replaces = false;  ///< the target is in the source's history, which tells its gradient
};

class FillBackward final : public Node {
 public:
  const char* name() const override { return "FillBackward"; }
  TensorList apply(TensorList grads) override { return {zeros_like(grads[0])}; }
  TensorList apply_recorded(TensorList grads) override { return {zeros_like(grads[0])}; }
};

const Tensor& fill_in_place(const Tensor& target, Scalar value, const char* op) {
  LOCKSTEP_CHECK(target.defined(), "[{}] the tensor is undefined", op);
  check_in_range(value, target.dtype(), op);
  check_in_place(target, should_record({&target}), op);
  fill_values(target, value);
  record_in_place<FillBackward>(target, {&target});
  return target;
}

const Tensor& copy_in_place(const Tensor& target, const Tensor& source, bool replaces, const char* op) {
  LOCKSTEP_CHECK(target.defined() && source.defined(), "[{}] the {} is undefined", op,
                 target.defined() ? "source" : "target");
  LOCKSTEP_CHECK(broadcast_shapes(source.sizes(), target.sizes(), op) == target.sizes(),
                 "[{}] a source of shape {} does not broadcast to the target's shape {}", op, to_string(source.sizes()),
                 to_string(target.sizes()));
  // Values that pass through integers carry no gradient.
  const bool recording = target.is_floating_point() && should_record({&target, &source});
  check_in_place(target, recording, op);
  copy_values(without_overlap(source, target), target);
  if (!recording) return target;
  if (auto* node = record_in_place<CopyInPlaceBackward>(target, {&target, &source})) {
    node->sizes = source.sizes();
    node->dtype = source.dtype();
    node->device = source.device();
    node->replaces = replaces;
  }
  return target;
}

}  // namespace

Tensor clone(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[clone] the tensor is undefined");
  Tensor out = copy_contiguous(x);
  record<CloneBackward>(out, {&x});
  return out;
}

Tensor Tensor::clone() const {
  return lockstep::clone(*this);
}

Tensor Tensor::contiguous() const {
  LOCKSTEP_CHECK(defined(), "[contiguous] the tensor is undefined");
  return is_contiguous() ? *this : clone();
}

Tensor Tensor::to(DType dtype) const {
  LOCKSTEP_CHECK(defined(), "[to] the tensor is undefined");
  if (dtype == this->dtype()) return *this;
  Tensor out = elementwise_cast(*this, dtype);
  if (!out.defined()) out = cast_in_either_order(*this, dtype);
  if (!lockstep::is_floating_point(dtype)) return out;
  if (auto* node = record<CastBackward>(out, {this})) node->dtype = this->dtype();
  return out;
}

Tensor Tensor::to(Device device) const {
  LOCKSTEP_CHECK(defined(), "[to] the tensor is undefined");
  if (device == this->device()) return *this;
  Tensor out = move_values(*this, device);
  if (auto* node = record<MoveBackward>(out, {this})) node->device = this->device();
  return out;
}

Tensor Tensor::to(Device device, DType dtype) const {
  LOCKSTEP_CHECK(defined(), "[to] the tensor is undefined");
  // Cast where there is less to move.
  return element_size(dtype) < element_size(this->dtype()) ? to(dtype).to(device) : to(device).to(dtype);
}

const Tensor& Tensor::copy_(const Tensor& source) const {
  return copy_in_place(*this, source, false, "copy_");
}

const Tensor& write_values(const Tensor& target, const Tensor& source, const char* op) {
  return copy_in_place(target, source, false, op);
}

const Tensor& replace_values(const Tensor& target, const Tensor& source, const char* op) {
  return copy_in_place(target, source, true, op);
}

const Tensor& Tensor::fill_(Scalar value) const {
  return fill_in_place(*this, value, "fill_");
}

const Tensor& Tensor::operator=(Scalar value) const&& {
  return fill_in_place(*this, value, "operator=");
}

const Tensor& Tensor::zero_() const {
  return fill_in_place(*this, 0.0, "zero_");
}

}  // namespace lockstep
