#include "lockstep/autograd/autocast.h"

#include <array>
#include <unordered_map>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// A parameter that was cast. Holds it, so that its address is no other tensor's.
struct Cast {
  Tensor parameter;
  Tensor value;
  std::uint32_t version = 0;
  bool recorded = false;
};

struct State {
  std::array<DType, 2> dtypes{kFloat32, kFloat32};  // by DeviceType; float32: off
  int guards = 0;
  std::unordered_map<const TensorImpl*, Cast> casts;

  bool any() const { return dtypes[0] != kFloat32 || dtypes[1] != kFloat32; }
};

State& state() {
  thread_local State state;
  return state;
}

DType& dtype_for(DeviceType device) {
  return state().dtypes[static_cast<std::size_t>(device)];
}

// Not if its graph was freed by a backward() since, or if it does not fit what is asked for now.
bool is_usable(const Cast& cast, DType dtype, bool recorded) {
  if (cast.value.dtype() != dtype || cast.recorded != recorded || cast.version != cast.parameter.storage()->version())
    return false;
  const AutogradMeta* meta = autograd_meta(cast.value);
  return !recorded || (meta && meta->grad_fn && !meta->grad_fn->released());
}

Tensor cast_parameter(const Tensor& parameter, DType dtype) {
  const bool recorded = GradMode::enabled();
  Cast& cast = state().casts[parameter.impl()];
  if (!cast.value.defined() || !is_usable(cast, dtype, recorded))
    cast = {parameter, parameter.to(dtype), parameter.storage()->version(), recorded};
  return cast.value;
}

}  // namespace

namespace autocast {

Settings::Settings() : dtypes_{state().dtypes[0], state().dtypes[1]} {}

struct Resume::Outer {
  State state;
  bool is_active;
};

Resume::Resume(const Settings& settings) : outer_(new Outer{std::move(state()), is_active}) {
  state() = State{.dtypes = {settings.dtypes_[0], settings.dtypes_[1]}, .guards = 1, .casts = {}};
  is_active = state().any();
}

Resume::~Resume() {
  state() = std::move(outer_->state);
  is_active = outer_->is_active;
  delete outer_;
}

}  // namespace autocast

AutocastGuard::AutocastGuard(DType dtype, DeviceType device) : device_(device), saved_(dtype_for(device)) {
  LOCKSTEP_CHECK(dtype == kFloat16 || dtype == kBFloat16 || dtype == kFloat32,
                 "[AutocastGuard] expected float16 or bfloat16, or float32 for none, found {}", name(dtype));
  dtype_for(device) = dtype;
  ++state().guards;
  autocast::is_active = state().any();
}

AutocastGuard::~AutocastGuard() {
  dtype_for(device_) = saved_;
  autocast::is_active = state().any();
  if (--state().guards == 0) state().casts.clear();
}

namespace autocast {

Tensor low(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.dtype() == kFloat64) return tensor;
  const DType dtype = dtype_for(tensor.device().type);
  if (dtype == kFloat32 || dtype == tensor.dtype()) return tensor;
  if (tensor.is_leaf() && tensor.requires_grad()) return cast_parameter(tensor, dtype);
  return tensor.to(dtype);
}

Tensor full(const Tensor& tensor) {
  const bool half = tensor.defined() && (tensor.dtype() == kFloat16 || tensor.dtype() == kBFloat16);
  if (!half || dtype_for(tensor.device().type) == kFloat32) return tensor;
  return tensor.to(kFloat32);
}

}  // namespace autocast
}  // namespace lockstep
