#include "lockstep/autograd/ops/copy/copy.h"

#include "lockstep/autograd/ops/copy/cast_computation.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dtype.h"

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

/// Inputs: the target (whose old values are gone, so it gets no gradient) and the source.
class CopyInPlaceBackward final : public Node {
 public:
  const char* name() const override { return "CopyInPlaceBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(1)) results[1] = move_values(cast_values(sum_to(grads[0], sizes), dtype), device);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(1)) results[1] = recorded_sum_to(grads[0], sizes).to(dtype).to(device);
    return results;
  }

  Shape sizes;
  DType dtype = kFloat32;
  Device device;
};

class FillBackward final : public Node {
 public:
  const char* name() const override { return "FillBackward"; }
  TensorList apply(TensorList) override { return TensorList(1); }
  TensorList apply_recorded(TensorList) override { return TensorList(1); }
};

const Tensor& fill_in_place(const Tensor& target, Scalar value, const char* op) {
  LOCKSTEP_CHECK(target.defined(), "[{}] the tensor is undefined", op);
  check_in_range(value, target.dtype(), op);
  check_in_place(target, should_record({&target}), op);
  fill_values(target, value);
  record_in_place<FillBackward>(target, {&target});
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
  LOCKSTEP_CHECK(defined() && source.defined(), "[copy_] the {} is undefined", defined() ? "source" : "target");
  LOCKSTEP_CHECK(broadcast_shapes(source.sizes(), sizes(), "copy_") == sizes(),
                 "[copy_] a source of shape {} does not broadcast to the target's shape {}", to_string(source.sizes()),
                 to_string(sizes()));
  // Values that pass through integers carry no gradient.
  const bool recording = is_floating_point() && should_record({this, &source});
  check_in_place(*this, recording, "copy_");
  copy_values(without_overlap(source, *this), *this);
  if (!recording) return *this;
  if (auto* node = record_in_place<CopyInPlaceBackward>(*this, {this, &source})) {
    node->sizes = source.sizes();
    node->dtype = source.dtype();
    node->device = source.device();
  }
  return *this;
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
