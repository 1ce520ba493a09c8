#pragma once

// Loops over elements on CUDA devices: functor(in...) for every element. For .cu files only.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// cpu::StridedLoop as a kernel's argument.
template <int N>
struct Strides {
  int dims = 0;
  std::int64_t numel = 0;
  std::int64_t sizes[Shape::kMaxDims];
  std::int64_t strides[N][Shape::kMaxDims];

  explicit Strides(const cpu::StridedLoop<N>& loop) : dims(loop.sizes.dim()), numel(loop.numel) {
    for (int d = 0; d < dims; ++d) {
      sizes[d] = loop.sizes[d];
      for (int n = 0; n < N; ++n) strides[n][d] = loop.strides[static_cast<std::size_t>(n)][d];
    }
  }

  /// The operands' offsets of element `index`.
  __device__ void offsets(std::int64_t index, std::int64_t (&offset)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) offset[n] = 0;
    for (int d = dims - 1; d >= 0; --d) {
      std::int64_t at;
      if (numel <= 0x7fffffff) {  // 64-bit division takes several times as long
        const auto size = static_cast<std::uint32_t>(sizes[d]);
        const auto whole = static_cast<std::uint32_t>(index);
        at = whole % size;
        index = whole / size;
      } else {
        at = index % sizes[d];
        index /= sizes[d];
      }
#pragma unroll
      for (int n = 0; n < N; ++n) offset[n] += at * strides[n][d];
    }
  }
};

/// A dense operand of elements T, read as C, or one value for all.
template <typename T, typename C>
struct DenseSource {
  const T* data;
  C value;

  template <int W>
  __device__ Pack<C, W> pack(std::int64_t index) const {
    return data ? read_pack<C, W>(data, index) : pack_of<W>(value);
  }
  __device__ C at(std::int64_t i) const { return data ? from_element<C>(data[i]) : value; }
};

/// out[i] = f(in[i]...) for contiguous operands, W elements at a time.
template <int W, typename C, typename O, typename F, typename... In>
__global__ void dense_kernel(std::int64_t count, F f, O* out, In... in) {
  const std::int64_t packs = count / W;
  for (std::int64_t p = global_thread(); p < packs; p += all_threads()) {
    Pack<O, W> result;
    [&](const auto&... pack) {
#pragma unroll
      for (int j = 0; j < W; ++j) result.value[j] = to_element<O>(f(pack.value[j]...));
    }(in.template pack<W>(p)...);
    reinterpret_cast<Pack<O, W>*>(out)[p] = result;
  }
  const std::int64_t rest = packs * W + global_thread();
  if (rest < count) out[rest] = to_element<O>(f(in.at(rest)...));
}

template <typename C, int N, typename F, std::size_t... I, typename... In>
__device__ C call_at(std::index_sequence<I...>, const F& f, const std::int64_t (&offset)[N], const In&... in) {
  return static_cast<C>(f(in.at(offset[I + 1])...));
}

/// The same for any layout and dtypes; operand 0 of the loop is the result. `packed`, of results computed in float: all
/// lie densely, and kPack of each may be read at once.
template <typename C, int N, typename F, typename... In>
__global__ void strided_kernel(Strides<N> loop, bool packed, F f, Target<C> out, In... in) {
  if constexpr (std::is_same_v<C, float>) {
    if (packed) {
      for (std::int64_t p = global_thread(); p < loop.numel / kPack; p += all_threads()) {
        Pack<C, kPack> result;
        [&](const auto&... pack) {
#pragma unroll
          for (int j = 0; j < kPack; ++j) result.value[j] = static_cast<C>(f(pack.value[j]...));
        }(in.pack(p)...);
        out.set_pack(p, result);
      }
      return;
    }
  }
  for (std::int64_t i = global_thread(); i < loop.numel; i += all_threads()) {
    std::int64_t offset[N];
    loop.offsets(i, offset);
    out.set(offset[0], call_at<C>(std::make_index_sequence<sizeof...(In)>(), f, offset, in...));
  }
}

/// An operand of map(): a tensor that broadcasts to the result, or a value.
template <typename C>
struct Input {
  const Tensor* tensor = nullptr;
  C value{};
  Input(const Tensor& tensor) : tensor(&tensor) {}
  Input(C value) : value(value) {}
};

namespace detail {

template <typename T, typename C>
bool dense_as(const Tensor& out, const Input<C>& in) {
  return !in.tensor ||
         (in.tensor->dtype() == dtype_of<T> && in.tensor->is_contiguous() && in.tensor->sizes() == out.sizes());
}

/// Tries the dense loop on elements of T with results of O.
template <typename T, typename O, typename C, typename F, typename... In>
bool map_dense(const Launch& launch, const Tensor& out, const F& f, const In&... in) {
  if (out.dtype() != dtype_of<O> || !out.is_contiguous() || !(dense_as<T>(out, in) && ...)) return false;
  constexpr int kWidth = 16 / static_cast<int>(std::max(sizeof(T), sizeof(O)));
  auto* to = static_cast<O*>(out.raw_data());
  const bool packed =
      aligned(to, sizeof(O) * kWidth) && ((!in.tensor || aligned(in.tensor->raw_data(), sizeof(T) * kWidth)) && ...);
  const auto source = [](const Input<C>& operand) {
    return DenseSource<T, C>{operand.tensor ? static_cast<const T*>(operand.tensor->raw_data()) : nullptr,
                             operand.value};
  };
  const std::int64_t count = out.numel();
  if (packed) {
    launch(dense_kernel<kWidth, C, O, F, decltype(source(in))...>, blocks_for(count, kThreads * kWidth), kThreads,
           count, f, to, source(in)...);
  } else {
    launch(dense_kernel<1, C, O, F, decltype(source(in))...>, blocks_for(count), kThreads, count, f, to, source(in)...);
  }
  return true;
}

}  // namespace detail

/// out = f(in...), each operand read as C, results rounded to out's dtype: as the CPU's kernels do. `kCompares`: the
/// results are bool. One kernel for all dtypes and layouts.
template <typename C, bool kCompares = false, typename F, typename... In>
void map_strided(const Tensor& out, const F& f, const In&... in) {
  if (out.numel() == 0) return;
  const Launch launch(out);
  constexpr int kOperands = 1 + static_cast<int>(sizeof...(In));
  using Result = std::conditional_t<kCompares, bool, C>;
  // A value walks along with the result's offsets and is read at none of them.
  const Strides<kOperands> loop(cpu::plan_loop<kOperands>(out.sizes(), {&out, (in.tensor ? in.tensor : &out)...}));
  const auto source = [](const Input<C>& operand) {
    return operand.tensor ? Source<C>(*operand.tensor) : Source<C>({}, operand.value);
  };
  [[maybe_unused]] const auto dense = [&](const Input<C>& in) {
    return !in.tensor || (in.tensor->sizes() == out.sizes() && in.tensor->is_contiguous() &&
                          aligned(in.tensor->raw_data(), kPack * element_size(in.tensor->dtype())));
  };
  const bool packed = std::is_same_v<Result, float> && loop.numel % kPack == 0 && out.is_contiguous() &&
                      aligned(out.raw_data(), kPack * element_size(out.dtype())) && (dense(in) && ...);
  launch(strided_kernel<Result, kOperands, F, decltype(source(in))...>,
         blocks_for(loop.numel, packed ? kThreads * kPack : kThreads), kThreads, loop, packed, f, Target<Result>(out),
         source(in)...);
}

/// The same, with kernels of its own for contiguous operands that all have one dtype: 16 bytes at a time.
template <typename C, bool kCompares = false, typename F, typename... In>
void map(const Tensor& out, const F& f, const In&... in) {
  if (out.numel() == 0) return;
  const Launch launch(out);
  if constexpr (kCompares) {
    if (detail::map_dense<C, bool, C>(launch, out, f, in...)) return;
  } else {
    if (detail::map_dense<C, C, C>(launch, out, f, in...)) return;
    if constexpr (std::is_same_v<C, float>) {
      if (detail::map_dense<Half, Half, C>(launch, out, f, in...)) return;
      if (detail::map_dense<BFloat16, BFloat16, C>(launch, out, f, in...)) return;
    }
  }
  map_strided<C, kCompares>(out, f, in...);
}

}  // namespace lockstep::cuda
