#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>

#include "lockstep/autograd/ops/layer_norm/layer_norm_kernels.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::to_element;

// A warp takes a row of up to 1,024 elements, a block a wider one, in packs of kPack neighbours. A thread keeps its
// first packs in registers, so that rows of up to 2,048 are read once and written once. Which elements a thread adds up
// does not depend on whether packs can be read at once.
using cuda::kPack;

template <typename C>
using Values = cuda::Pack<C, kPack>;

/// A row of a matrix, read and written in packs; zeros beyond its end.
template <typename T, typename C>
struct Row {
  T* data;
  int width;
  bool packed;  ///< packs may be read at once, and there are no parts of one

  __device__ Values<C> load(int pack) const {
    if (packed) return cuda::read_pack<C, kPack>(data, pack);
    Values<C> values{};
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (kPack * pack + j < width) values.value[j] = from_element<C>(data[kPack * pack + j]);
    return values;
  }
  __device__ void store(int pack, const Values<C>& values) const {
    if (packed) return cuda::write_pack(data, pack, values);
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (kPack * pack + j < width) data[kPack * pack + j] = to_element<T>(values.value[j]);
  }
};

/// The threads that share a row, kSize of them, each of which holds kHeld packs of it in registers: packs lane,
/// lane + kSize ... kWhole: rows consist of whole packs that can be read at once.
template <int kSize, int kHeld, bool kWhole>
struct Group {
  static constexpr int size = kSize, held = kHeld;
  static constexpr bool whole = kWhole;
  const int lane = static_cast<int>(threadIdx.x) % size;

  template <typename T>
  __device__ T sum(T value) const {
    if constexpr (kSize == kWarpSize) {
      return cuda::warp_sum(value);
    } else {
      static_assert(kSize == kThreads);
      return cuda::block_sum(value);
    }
  }
  /// A row's packs that are held in registers, all of whose reads are on their way at once.
  template <typename T, typename C>
  __device__ void hold(const Row<T, C>& row, Values<C> (&values)[held]) const {
    const int packs = (row.width + kPack - 1) / kPack;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      values[k] = Values<C>{};
      if (lane + k * size < packs) values[k] = row.load(lane + k * size);
    }
  }
  /// body(k, pack) for the packs that are held, then body(-1, pack) for the others.
  template <typename Body>
  __device__ void for_packs(int width, Body&& body) const {
    const int packs = (width + kPack - 1) / kPack;
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (lane + k * size < packs) body(k, lane + k * size);
    for (int pack = lane + held * size; pack < packs; pack += size) body(-1, pack);
  }
  /// body(j) for the elements of a pack that a row has.
  template <typename Body>
  __device__ void for_elements(int pack, int width, Body&& body) const {
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (kWhole || kPack * pack + j < width) body(j);
  }
};

template <typename C>
__device__ inline Values<C> parameter(const C* data, int pack, int width, bool packed, C absent) {
  return data ? Row<const C, C>{data, width, packed}.load(pack) : cuda::pack_of<kPack>(absent);
}

template <typename G, typename T, typename C>
__global__ void forward_kernel(const T* x, const C* weight, const C* bias, T* y, C* moments, std::int64_t rows,
                               int width, C eps, bool centred) {
  const G group;
  for (std::int64_t row = cuda::global_thread() / group.size; row < rows; row += cuda::all_threads() / group.size) {
    const Row<const T, C> from{x + row * width, width, G::whole};
    const Row<T, C> to{y + row * width, width, G::whole};
    Values<C> held[group.held];
    group.hold(from, held);
    const auto values_of = [&](int k, int pack) { return k >= 0 ? held[k] : from.load(pack); };
    C sum = 0;
    group.for_packs(width, [&](int k, int pack) {
      const Values<C> values = values_of(k, pack);
      group.for_elements(pack, width, [&](int j) { sum += values.value[j]; });
    });
    const C mean = centred ? group.sum(sum) / static_cast<C>(width) : C(0);
    // What the rounded mean is off by, as on the CPU.
    C off = 0;
    group.for_packs(width, [&](int k, int pack) {
      const Values<C> values = values_of(k, pack);
      group.for_elements(pack, width, [&](int j) { off += values.value[j] - mean; });
    });
    const C rest = centred ? group.sum(off) / static_cast<C>(width) : C(0);
    C squares = 0;
    group.for_packs(width, [&](int k, int pack) {
      const Values<C> values = values_of(k, pack);
      group.for_elements(pack, width, [&](int j) {
        const C difference = values.value[j] - mean - rest;
        squares += difference * difference;
      });
    });
    const C inverse = C(1) / std::sqrt(group.sum(squares) / static_cast<C>(width) + eps);
    if (group.lane == 0) {
      moments[3 * row] = mean;
      moments[3 * row + 1] = inverse;
      moments[3 * row + 2] = rest;
    }
    group.for_packs(width, [&](int k, int pack) {
      Values<C> values = values_of(k, pack);
      const Values<C> scale = parameter(weight, pack, width, G::whole, C(1)),
                      shift = parameter(bias, pack, width, G::whole, C(0));
      group.for_elements(pack, width, [&](int j) {
        values.value[j] = (values.value[j] - mean - rest) * inverse * scale.value[j] + shift.value[j];
      });
      to.store(pack, values);
    });
  }
}

/// With n = (x - mean) * inverse and h = grad * weight: grad_input = inverse * (h - mean(h) - n * mean(h * n)), without
/// mean(h) if the input was not centred.
template <typename G, typename T, typename C>
__global__ void input_backward_kernel(const T* grad, const T* x, const C* weight, const C* moments, T* grad_input,
                                      std::int64_t rows, int width, bool centred) {
  const G group;
  for (std::int64_t row = cuda::global_thread() / group.size; row < rows; row += cuda::all_threads() / group.size) {
    const Row<const T, C> of_grad{grad + row * width, width, G::whole}, of_x{x + row * width, width, G::whole};
    const Row<T, C> to{grad_input + row * width, width, G::whole};
    const C mean = moments[3 * row], inverse = moments[3 * row + 1], rest = moments[3 * row + 2];
    Values<C> h[group.held], n[group.held];
    group.hold(of_grad, h);
    group.hold(of_x, n);
    const auto weigh = [&](int pack, Values<C>& hs, Values<C>& ns) {
      const Values<C> scale = parameter(weight, pack, width, G::whole, C(1));
      group.for_elements(pack, width, [&](int j) {
        hs.value[j] *= scale.value[j];
        ns.value[j] = (ns.value[j] - mean - rest) * inverse;
      });
    };
    cuda::Sums<C, 2> sums{{C(0), C(0)}};
    group.for_packs(width, [&](int k, int pack) {
      Values<C> hs = k >= 0 ? h[k] : of_grad.load(pack), ns = k >= 0 ? n[k] : of_x.load(pack);
      weigh(pack, hs, ns);
      if (k >= 0) {
        h[k] = hs;
        n[k] = ns;
      }
      group.for_elements(pack, width, [&](int j) {
        sums.value[0] += hs.value[j];
        sums.value[1] += hs.value[j] * ns.value[j];
      });
    });
    sums = group.sum(sums);
    const C mean_h = centred ? sums.value[0] / static_cast<C>(width) : C(0),
            mean_hn = sums.value[1] / static_cast<C>(width);
    group.for_packs(width, [&](int k, int pack) {
      Values<C> hs = k >= 0 ? h[k] : of_grad.load(pack), ns = k >= 0 ? n[k] : of_x.load(pack);
      if (k < 0) weigh(pack, hs, ns);
      group.for_elements(pack, width,
                         [&](int j) { hs.value[j] = inverse * (hs.value[j] - mean_h - ns.value[j] * mean_hn); });
      to.store(pack, hs);
    });
  }
}

constexpr int kRows = kThreads / kWarpSize;  ///< of a block whose warps go down kWarpSize columns

/// Adds what the warps of a block have found of a column, and stores both sums; those that are null are left out.
template <typename C>
__device__ inline void store_columns(cuda::Sums<C, 2> sums, std::int64_t column, std::int64_t width, C* first,
                                     C* second) {
  __shared__ cuda::Sums<C, 2> partial[kThreads];
  __syncthreads();
  partial[threadIdx.x] = sums;
  __syncthreads();
  if (threadIdx.x >= kWarpSize || column >= width) return;
  for (int r = 1; r < kRows; ++r) sums = sums + partial[r * kWarpSize + threadIdx.x];
  if (first) first[column] = sums.value[0];
  if (second) second[column] = sums.value[1];
}

/// Sums down kWarpSize columns over a segment of rows: of grad * n, and of grad. A result that is null is not written;
/// they are [segments, width].
template <typename T, typename C>
__global__ void parameter_backward_kernel(const T* grad, const T* x, const C* moments, C* weight_sums, C* bias_sums,
                                          std::int64_t rows, std::int64_t width, std::int64_t segments,
                                          std::int64_t per_segment) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, first = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t strips = (width + kWarpSize - 1) / kWarpSize;
  for (std::int64_t item = blockIdx.x; item < strips * segments; item += gridDim.x) {
    const std::int64_t column = item % strips * kWarpSize + lane, segment = item / strips;
    const std::int64_t begin = segment * per_segment;
    const std::int64_t end = begin + per_segment < rows ? begin + per_segment : rows;
    cuda::Sums<C, 2> sums{{C(0), C(0)}};
    if (column < width) {
#pragma unroll 4
      for (std::int64_t row = begin + first; row < end; row += kRows) {
        const C incoming = from_element<C>(grad[row * width + column]);
        const C* of_row = moments + 3 * row;
        const C n = (from_element<C>(x[row * width + column]) - of_row[0] - of_row[2]) * of_row[1];
        sums.value[0] += incoming * n;
        sums.value[1] += incoming;
      }
    }
    store_columns(sums, column, width, weight_sums ? weight_sums + segment * width : nullptr,
                  bias_sums ? bias_sums + segment * width : nullptr);
  }
}

/// Joins both of parameter_backward_kernel's sums over segments; a result that is null is left out.
template <typename C>
__global__ void join_kernel(const C* weight_sums, const C* bias_sums, C* grad_weight, C* grad_bias,
                            std::int64_t segments, std::int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, first = static_cast<int>(threadIdx.x) / kWarpSize;
  for (std::int64_t strip = blockIdx.x; strip * kWarpSize < width; strip += gridDim.x) {
    const std::int64_t column = strip * kWarpSize + lane;
    cuda::Sums<C, 2> sums{{C(0), C(0)}};
    if (column < width) {
#pragma unroll 4
      for (std::int64_t segment = first; segment < segments; segment += kRows) {
        if (grad_weight) sums.value[0] += weight_sums[segment * width + column];
        if (grad_bias) sums.value[1] += bias_sums[segment * width + column];
      }
    }
    store_columns(sums, column, width, grad_weight, grad_bias);
  }
}

/// A parameter in the type that is computed in: to tell types apart for each element would take longer than the rest.
template <typename C>
Tensor as_computed(const Tensor& parameter) {
  return parameter.defined() ? as_contiguous(cast_values(parameter, dtype_of<C>)) : parameter;
}
template <typename C>
const C* data_of(const Tensor& t) {
  return t.defined() ? t.data<C>() : nullptr;
}

/// Whether all rows of these, which may be undefined, can be taken a pack at a time.
bool in_packs(std::int64_t width, std::initializer_list<const Tensor*> tensors) {
  return width % kPack == 0 && std::ranges::all_of(tensors, [](const Tensor* t) {
           return !t->defined() || cuda::aligned(t->raw_data(), kPack * element_size(t->dtype()));
         });
}

/// Calls f.operator()<G>(blocks).
template <typename F>
void with_group(std::int64_t rows, std::int64_t width, bool whole, F&& f) {
  constexpr int kShort = 4, kLong = 8;
  const unsigned blocks = cuda::blocks_for(rows, kThreads / kWarpSize), blocks_of_wide = cuda::blocks_for(rows, 1);
  if (width > kLong * kWarpSize * kPack && whole) {
    f.template operator()<Group<kThreads, 2, true>>(blocks_of_wide);
  } else if (width > kLong * kWarpSize * kPack) {
    f.template operator()<Group<kThreads, 2, false>>(blocks_of_wide);
  } else if (!whole) {
    f.template operator()<Group<kWarpSize, kLong, false>>(blocks);
  } else if (width > kShort * kWarpSize * kPack) {
    f.template operator()<Group<kWarpSize, kLong, true>>(blocks);
  } else {
    f.template operator()<Group<kWarpSize, kShort, true>>(blocks);
  }
}

template <typename T>
void parameter_backward(const cuda::Launch& launch, const Tensor& grad, const Tensor& input, const Tensor& moments,
                        const Tensor& grad_weight, const Tensor& grad_bias, std::int64_t rows, std::int64_t width) {
  using C = compute_t<T>;
  constexpr std::int64_t kEnoughBlocks = 1024, kLeastRows = 64;
  const std::int64_t strips = (width + kWarpSize - 1) / kWarpSize;
  const std::int64_t segments =
      std::max<std::int64_t>(1, std::min(kEnoughBlocks / strips, (rows + kLeastRows - 1) / kLeastRows));
  const auto sums_for = [&](const Tensor& result) {
    return result.defined() && segments > 1 ? empty({segments, width}, options_of(result)) : result;
  };
  const Tensor weight_sums = sums_for(grad_weight), bias_sums = sums_for(grad_bias);
  const auto data = [](const Tensor& t) { return t.defined() ? t.data<C>() : nullptr; };
  launch(parameter_backward_kernel<T, C>, cuda::blocks_for(strips * segments, 1), kThreads, grad.data<T>(),
         input.data<T>(), moments.data<C>(), data(weight_sums), data(bias_sums), rows, width, segments,
         (rows + segments - 1) / segments);
  if (segments == 1) return;
  launch(join_kernel<C>, cuda::blocks_for(strips, 1), kThreads, data(weight_sums), data(bias_sums), data(grad_weight),
         data(grad_bias), segments, width);
}

}  // namespace

void layer_norm_cuda(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                     const Tensor& moments, std::int64_t rows, std::int64_t width, double eps, bool centred) {
  cuda::require_not_portable("layer_norm");
  if (rows == 0) return;
  if (width > std::numeric_limits<int>::max() / 2)
    throw Error("[layer_norm] rows of " + std::to_string(width) + " elements are too wide for a CUDA device");
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "layer_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const Tensor scale = as_computed<C>(weight), shift = as_computed<C>(bias);
    with_group(rows, width, in_packs(width, {&input, &output, &scale, &shift}), [&]<typename G>(unsigned blocks) {
      launch(forward_kernel<G, T, C>, blocks, kThreads, input.data<T>(), data_of<C>(scale), data_of<C>(shift),
             output.data<T>(), moments.data<C>(), rows, static_cast<int>(width), static_cast<C>(eps), centred);
    });
  });
}

void layer_norm_backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
                              const Tensor& grad_input, const Tensor& grad_weight, const Tensor& grad_bias,
                              std::int64_t rows, std::int64_t width, bool centred) {
  cuda::require_not_portable("the gradient of layer_norm");
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "layer_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const Tensor scale = as_computed<C>(weight);
    if (grad_input.defined() && rows > 0)
      with_group(rows, width, in_packs(width, {&grad, &input, &grad_input, &scale}), [&]<typename G>(unsigned blocks) {
        launch(input_backward_kernel<G, T, C>, blocks, kThreads, grad.data<T>(), input.data<T>(), data_of<C>(scale),
               moments.data<C>(), grad_input.data<T>(), rows, static_cast<int>(width), centred);
      });
    if (grad_weight.defined() || grad_bias.defined())
      parameter_backward<T>(launch, grad, input, moments, grad_weight, grad_bias, rows, width);
  });
}

}  // namespace lockstep
