#include "lockstep/autograd/ops/dropout/dropout_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::detail {
namespace {

using cuda::kThreads;

// Philox gives four words at a time, so a thread decides on four elements, and moves them in packs.
constexpr int kWords = 4;
using Decisions = cuda::Pack<std::uint8_t, kWords>;

__device__ Decisions decide(philox::Key key, std::uint32_t threshold, std::int64_t quad) {
  const philox::Block words = philox::generate(key, static_cast<std::uint64_t>(quad));
  Decisions keep;
#pragma unroll
  for (int j = 0; j < kWords; ++j) keep.value[j] = words.word[j] >= threshold;
  return keep;
}

template <typename T, typename C>
__device__ T apply(T x, std::uint8_t keep, C scale) {
  return cuda::to_element<T>(keep ? cuda::from_element<C>(x) * scale : C(0));
}

template <typename T, typename C>
__device__ void apply_pack(const T* x, Decisions keep, T* out, std::int64_t quad, C scale) {
  auto pack = reinterpret_cast<const cuda::Pack<T, kWords>*>(x)[quad];
#pragma unroll
  for (int j = 0; j < kWords; ++j) pack.value[j] = apply(pack.value[j], keep.value[j], scale);
  reinterpret_cast<cuda::Pack<T, kWords>*>(out)[quad] = pack;
}

__global__ void mask_kernel(philox::KeySource source, std::uint32_t threshold, std::uint8_t* mask, std::int64_t count) {
  const philox::Key key = source.get();
  for (std::int64_t quad = cuda::global_thread(); quad * kWords < count; quad += cuda::all_threads()) {
    const Decisions keep = decide(key, threshold, quad);
    for (int j = 0; j < kWords && quad * kWords + j < count; ++j) mask[quad * kWords + j] = keep.value[j];
  }
}

__global__ void part_mask_kernel(DropoutPlan plan, std::uint8_t* mask, std::int64_t count) {
  const philox::Key key = plan.key.get();
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads())
    mask[i] = philox::word_at(key, static_cast<std::uint64_t>(plan.word_of(i))) >= plan.threshold;
}

/// Decides and applies in one pass over memory.
template <typename T, typename C>
__global__ void dropout_kernel(philox::KeySource source, std::uint32_t threshold, C scale, const T* x,
                               std::uint8_t* mask, T* out, std::int64_t count) {
  const philox::Key key = source.get();
  for (std::int64_t quad = cuda::global_thread(); quad * kWords < count; quad += cuda::all_threads()) {
    const Decisions keep = decide(key, threshold, quad);
    if (quad * kWords + kWords <= count) {
      reinterpret_cast<Decisions*>(mask)[quad] = keep;
      apply_pack(x, keep, out, quad, scale);
      continue;
    }
    for (int j = 0; quad * kWords + j < count; ++j) {
      const std::int64_t i = quad * kWords + j;
      mask[i] = keep.value[j];
      out[i] = apply(x[i], keep.value[j], scale);
    }
  }
}

template <typename T, typename C>
__global__ void apply_packs_kernel(C scale, const T* x, const std::uint8_t* mask, T* out, std::int64_t count) {
  const std::int64_t quads = count / kWords;
  for (std::int64_t quad = cuda::global_thread(); quad < quads; quad += cuda::all_threads())
    apply_pack(x, reinterpret_cast<const Decisions*>(mask)[quad], out, quad, scale);
  const std::int64_t rest = quads * kWords + cuda::global_thread();
  if (rest < count) out[rest] = apply(x[rest], mask[rest], scale);
}

template <typename T, typename C>
__global__ void apply_kernel(C scale, const T* x, const std::uint8_t* mask, T* out, std::int64_t count,
                             std::int64_t inner) {
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads())
    out[i] = apply(x[i], mask[i / inner], scale);
}

template <typename T>
bool in_packs(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  return plan.inner == 1 && cuda::aligned(x.raw_data(), sizeof(T) * kWords) &&
         cuda::aligned(out.raw_data(), sizeof(T) * kWords) && cuda::aligned(mask.raw_data(), kWords);
}

}  // namespace

void dropout_cuda(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  const cuda::Launch launch(x);
  auto* keep = mask.data<std::uint8_t>();
  const auto blocks = cuda::blocks_for((mask.numel() + kWords - 1) / kWords);
  bool done = false;
  dispatch_floating(x.dtype(), "dropout", [&]<typename T>() {
    using C = compute_t<T>;
    if (plan.row != 0 || !in_packs<T>(x, mask, out, plan)) return;
    launch(dropout_kernel<T, C>, blocks, kThreads, plan.key, plan.threshold, static_cast<C>(plan.scale), x.data<T>(),
           keep, out.data<T>(), x.numel());
    done = true;
  });
  if (done) return;
  if (plan.row != 0)
    launch(part_mask_kernel, cuda::blocks_for(mask.numel()), kThreads, plan, keep, mask.numel());
  else
    launch(mask_kernel, blocks, kThreads, plan.key, plan.threshold, keep, mask.numel());
  dropout_apply_cuda(x, mask, out, plan);
}

void dropout_apply_cuda(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  if (x.numel() == 0) return;
  const cuda::Launch launch(x);
  const auto* keep = mask.data<std::uint8_t>();
  dispatch_floating(x.dtype(), "dropout", [&]<typename T>() {
    using C = compute_t<T>;
    const C scale = static_cast<C>(plan.scale);
    if (in_packs<T>(x, mask, out, plan)) {
      launch(apply_packs_kernel<T, C>, cuda::blocks_for(x.numel(), kThreads * kWords), kThreads, scale, x.data<T>(),
             keep, out.data<T>(), x.numel());
    } else {
      launch(apply_kernel<T, C>, cuda::blocks_for(x.numel()), kThreads, scale, x.data<T>(), keep, out.data<T>(),
             x.numel(), plan.inner);
    }
  });
}

}  // namespace lockstep::detail
