// Convolutions by cuDNN.

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "lockstep/autograd/ops/conv2d/conv2d_cudnn_passes.h"
#include "lockstep/autograd/ops/conv2d/conv2d_device.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/cudnn.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_device {
namespace {

/// Note [Choice of cuDNN's algorithm]
/// The library's heuristics rank its algorithms for a geometry. The first is taken that
///   - gives the same bits each time, unless set_deterministic(false);
///   - keeps the precision of the dtype: no conversion to half types on the way, no Winograd transforms of large tiles,
///     whose errors are ten times those of the sums, no Fourier transforms, which carry what is not finite to the whole
///     image, and no TF32 that was not asked for;
///   - needs at most kMaxWorkspace.
/// If there is none, one of the implicit products is tried, which are deterministic and exact. Nothing is measured: the
/// choice, and so the bits, must not depend on what else the device is doing. Unless that is asked for: with
/// cuda::benchmark() the order is that of measured times, and transforms may win.
template <typename Pass>
class Plan {
 public:
  using Algorithm = typename Pass::Algorithm;

  Plan(const Conv2dGeometry& g, DType dtype, int device, cudnnHandle_t handle) : descriptors(g, dtype) {
    LOCKSTEP_ASSERT(descriptors.output_sizes() == Shape({g.n, g.out, g.oh, g.ow}), "cuDNN's result is {}",
                    to_string(descriptors.output_sizes()));
    typename Pass::Result results[kRoom];
    int count = 0;
    if (Pass::ask(handle, descriptors, static_cast<int>(std::size(results)), &count, results) != CUDNN_STATUS_SUCCESS)
      count = 0;
    const bool measured = cuda::benchmark() && !cuda::is_capturing(device) &&
                          measure(g, {.dtype = dtype, .device = {kCUDA, device}}, handle, results, &count);
    for (int i = 0; i < count; ++i) {
      const auto& result = results[i];
      const bool inaccurate =
          !measured && std::ranges::find(Pass::kInaccurate, result.algo) != std::end(Pass::kInaccurate);
      if (result.status != CUDNN_STATUS_SUCCESS || result.memory > kMaxWorkspace || inaccurate ||
          result.mathType == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION ||
          (cuda::deterministic() && result.determinism != CUDNN_DETERMINISTIC))
        continue;
      // An algorithm is meant together with its math. That of FMA stays: "default" would let TF32 in.
      const cudnnMathType_t math = math_type(dtype);
      if (accept(handle, result.algo, math == CUDNN_FMA_MATH ? math : result.mathType)) return;
    }
    // Without tensor cores where these do not take the geometry.
    const cudnnMathType_t plain = dtype == kFloat64 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    for (const cudnnMathType_t math : {math_type(dtype), plain})
      for (const Algorithm safe : Pass::kSafe)
        if (accept(handle, safe, math)) return;
  }

  /// Throws Error if the library has none.
  void require(const Conv2dGeometry& g, DType dtype) const {
    LOCKSTEP_CHECK(
        found, "[conv2d] cuDNN has no{} algorithm for {} of a convolution of {}; {}",
        cuda::deterministic() ? " deterministic" : "", Pass::kName, describe(g, dtype),
        cuda::deterministic() ? "set_deterministic(false) allows others, or use another dtype" : "use another dtype");
  }

  /// Memory for one call, from the allocator, which hands it to the stream's next user when this one has been queued.
  Tensor workspace(Device device) const {
    if (bytes == 0) return {};
    return empty({static_cast<std::int64_t>(bytes)}, {.dtype = kUInt8, .device = device});
  }

  Descriptors descriptors;
  bool found = false;  // an algorithm
  Algorithm algorithm{};
  std::size_t bytes = 0;  // of the workspace
  bool fuses = true;      // bias and relu with the forward pass: until the library refuses

 private:
  static constexpr std::size_t kMaxWorkspace = std::size_t{1} << 30;
  static constexpr int kRoom = 16;

  /// Puts the algorithms in the order of their times. False, with nothing changed, if that cannot be done.
  bool measure(const Conv2dGeometry& g, TensorOptions options, cudnnHandle_t handle,
               typename Pass::Result (&results)[kRoom], int* count) const {
    std::size_t most = 0;
    for (int i = 0; i < *count; ++i)
      if (results[i].status == CUDNN_STATUS_SUCCESS && results[i].memory <= kMaxWorkspace)
        most = std::max(most, results[i].memory);
    Tensor x, weight, y, work;
    try {
      x = empty({g.n, g.in, g.h, g.w}, options), weight = empty({g.out, g.group_in(), g.kh, g.kw}, options);
      y = empty({g.n, g.out, g.oh, g.ow}, options);
      work = empty({static_cast<std::int64_t>(most)}, {.dtype = kUInt8, .device = options.device});
    } catch (const Error&) {  // no memory: the convolution itself may still have enough
      return false;
    }
    const Scratch scratch{x.raw_data(), weight.raw_data(), y.raw_data(), work.raw_data(), most};
    typename Pass::Result found[kRoom];
    int measured = 0;
    if (Pass::measure(handle, descriptors, scratch, kRoom, &measured, found) != CUDNN_STATUS_SUCCESS || measured == 0)
      return false;
    std::copy_n(found, measured, results);
    *count = measured;
    return true;
  }

  bool accept(cudnnHandle_t handle, Algorithm candidate, cudnnMathType_t math) {
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetConvolutionMathType(descriptors.convolution, math));
    std::size_t needed = 0;
    if (Pass::workspace(handle, descriptors, candidate, &needed) != CUDNN_STATUS_SUCCESS || needed > kMaxWorkspace)
      return false;
    algorithm = candidate;
    bytes = needed;
    return found = true;
  }
};

/// The plan for what a call's result depends on. Each thread has its own, like its handle.
template <typename Pass>
Plan<Pass>& any_plan_of(const Conv2dGeometry& g, DType dtype, int device, cudnnHandle_t handle) {
  const std::array<std::int64_t, 22> key{g.n,
                                         g.in,
                                         g.h,
                                         g.w,
                                         g.out,
                                         g.kh,
                                         g.kw,
                                         g.oh,
                                         g.ow,
                                         g.stride.h,
                                         g.stride.w,
                                         g.padding.h,
                                         g.padding.w,
                                         g.dilation.h,
                                         g.dilation.w,
                                         g.groups,
                                         g.channels_last,
                                         static_cast<std::int64_t>(dtype),
                                         device,
                                         cuda::allow_tf32(),
                                         cuda::deterministic(),
                                         cuda::benchmark()};
  thread_local std::map<std::array<std::int64_t, 22>, std::unique_ptr<Plan<Pass>>> plans;
  constexpr std::size_t kMaxPlans = 4096;  // only a program whose shapes never repeat comes there
  if (plans.size() >= kMaxPlans) plans.clear();
  std::unique_ptr<Plan<Pass>>& plan = plans[key];
  if (!plan) plan = std::make_unique<Plan<Pass>>(g, dtype, device, handle);
  return *plan;
}

/// The same where there has to be an algorithm.
template <typename Pass>
Plan<Pass>& plan_of(const Conv2dGeometry& g, DType dtype, int device, cudnnHandle_t handle) {
  Plan<Pass>& plan = any_plan_of<Pass>(g, dtype, device, handle);
  plan.require(g, dtype);
  return plan;
}

/// A factor as the library wants it: float64 for float64 tensors, else float32.
class Factor {
 public:
  Factor(double value, DType dtype) : double_(value), float_(static_cast<float>(value)), wide_(dtype == kFloat64) {}
  operator const void*() const { return wide_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  double double_;
  float float_;
  bool wide_;
};

void* data_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.raw_data() : nullptr;
}

// Tries to add the bias, and relu, on the way. What the library refuses here it may do in two steps.
bool forward_fused(Plan<Forward>& plan, cudnnHandle_t handle, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& out, bool relu, const Tensor& workspace) {
  // Without relu this is for one algorithm only.
  if (!relu && plan.algorithm != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) return false;
  const ActivationDescriptor activation;
  LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetActivationDescriptor(
      activation, relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0.0));
  const Descriptors& d = plan.descriptors;
  const Factor one(1.0, x.dtype()), zero(0.0, x.dtype());
  const cudnnStatus_t status = cudnn().cudnnConvolutionBiasActivationForward(
      handle, one, d.x, x.raw_data(), d.weight, weight.raw_data(), d.convolution, plan.algorithm, data_of(workspace),
      plan.bytes, zero, d.y, out.raw_data(), d.bias, bias.raw_data(), activation, d.y, out.raw_data());
  if (status == CUDNN_STATUS_SUCCESS) return true;
  const int category = static_cast<int>(status) / 1000 * 1000;
  if (category != CUDNN_STATUS_NOT_SUPPORTED && category != CUDNN_STATUS_BAD_PARAM) LOCKSTEP_CUDNN_CHECK(status);
  plan.fuses = false;
  return false;
}

}  // namespace

bool forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu) {
  const Device device = x.device();
  const cuda::DeviceGuard guard(device.index);
  const cudnnHandle_t handle = cuda::cudnn_handle(device.index);
  Plan<Forward>& plan = plan_of<Forward>(g, x.dtype(), device.index, handle);
  const Tensor workspace = plan.workspace(device);
  if (bias.defined() && plan.fuses && forward_fused(plan, handle, x, weight, bias, out, relu, workspace)) return true;
  const Descriptors& d = plan.descriptors;
  LOCKSTEP_CUDNN_CHECK(cudnn().cudnnConvolutionForward(
      handle, Factor(1.0, x.dtype()), d.x, x.raw_data(), d.weight, weight.raw_data(), d.convolution, plan.algorithm,
      data_of(workspace), plan.bytes, Factor(0.0, x.dtype()), d.y, out.raw_data()));
  return false;
}

void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  const Device device = grad.device();
  const cuda::DeviceGuard guard(device.index);
  const cudnnHandle_t handle = cuda::cudnn_handle(device.index);
  const Plan<BackwardData>& plan = plan_of<BackwardData>(g, grad.dtype(), device.index, handle);
  const Tensor workspace = plan.workspace(device);
  const Descriptors& d = plan.descriptors;
  LOCKSTEP_CUDNN_CHECK(cudnn().cudnnConvolutionBackwardData(
      handle, Factor(1.0, grad.dtype()), d.weight, weight.raw_data(), d.y, grad.raw_data(), d.convolution,
      plan.algorithm, data_of(workspace), plan.bytes, Factor(0.0, grad.dtype()), d.x, x_grad.raw_data()));
}

void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad) {
  const Device device = grad.device();
  const cuda::DeviceGuard guard(device.index);
  const cudnnHandle_t handle = cuda::cudnn_handle(device.index);
  const Plan<BackwardWeight>& plan = plan_of<BackwardWeight>(g, grad.dtype(), device.index, handle);
  const Tensor workspace = plan.workspace(device);
  const Descriptors& d = plan.descriptors;
  LOCKSTEP_CUDNN_CHECK(cudnn().cudnnConvolutionBackwardFilter(
      handle, Factor(1.0, grad.dtype()), d.x, x.raw_data(), d.y, grad.raw_data(), d.convolution, plan.algorithm,
      data_of(workspace), plan.bytes, Factor(0.0, grad.dtype()), d.weight, weight_grad.raw_data()));
}

bool supports(const Conv2dGeometry& g, const Tensor& x) {
  if (!has_size(g)) return false;
  const int device = x.device().index;
  const cuda::DeviceGuard guard(device);
  const cudnnHandle_t handle = cuda::cudnn_handle(device);
  const auto found = [&]<typename Pass>() { return any_plan_of<Pass>(g, x.dtype(), device, handle).found; };
  return found.template operator()<Forward>() && found.template operator()<BackwardData>() &&
         found.template operator()<BackwardWeight>();
}

void require_library() {
  cudnn();
}

Shape output_sizes(const Conv2dGeometry& g, DType dtype) {
  return Descriptors(g, dtype).output_sizes();
}

}  // namespace lockstep::conv2d_device
