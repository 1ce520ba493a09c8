#include <algorithm>

#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/quotient.cuh"
#include "lockstep/core/cuda/words.cuh"
#include "lockstep/core/factories.h"

namespace lockstep::detail {
namespace {

using cuda::kThreads;
using cuda::kWarpSize;

/// A row is W packs of words. Neighbouring threads copy neighbouring packs.
template <typename Word, int W>
__global__ void select_kernel(const Word* x, const std::int64_t* index, Word* out, Word missing, std::int64_t rows,
                              std::int64_t n, std::int64_t size, std::int64_t packs) {
  using Packed = cuda::Pack<Word, W>;
  Packed none;
#pragma unroll
  for (int j = 0; j < W; ++j) none.value[j] = missing;
  for (std::int64_t i = cuda::global_thread(); i < rows * packs; i += cuda::all_threads()) {
    const std::int64_t row = cuda::quotient(i, packs), outer = cuda::quotient(row, n), at = index[row - outer * n];
    const bool exists = at >= 0 && at < size;
    reinterpret_cast<Packed*>(out)[i] =
        exists ? reinterpret_cast<const Packed*>(x)[(outer * size + at) * packs + i - row * packs] : none;
  }
}

// Note [Sums by index on CUDA]
// Gradients of rows that were chosen several times are added without atomics, in the order of the index, so that the
// sums have the same bits in every run: a warp owns a row of the result (kColumns of it), looks through the index, and
// adds the rows that it finds there. A block's warps look through the index together, kChunk entries at a time. Where
// rows are few, the index is cut into segments whose sums meet in a second step.
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kChunk = 1024;
constexpr int kColumnsToALane = 4;
constexpr int kColumns = kWarpSize * kColumnsToALane;

struct AddShape {
  std::int64_t n, inner, size, rows;  // rows: outer * size
  std::int64_t tiles;                 // of kColumns columns
  std::int64_t segments, per_segment;
};

/// out is [segments, rows, inner]; every element is written.
template <typename T>
__global__ void add_kernel(const T* grad, const std::int64_t* index, T* out, AddShape s) {
  __shared__ std::int64_t chunk[kChunk];
  __shared__ std::uint16_t found[kWarps][kChunk];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t row_groups = (s.rows + kWarps - 1) / kWarps;
  for (std::int64_t item = blockIdx.x; item < row_groups * s.tiles * s.segments; item += gridDim.x) {
    const std::int64_t segment = item / (row_groups * s.tiles), tile = item / row_groups % s.tiles;
    const std::int64_t row = item % row_groups * kWarps + warp;
    const std::int64_t outer = row / s.size, wanted = row < s.rows ? row % s.size : -1;
    const std::int64_t first_column = tile * kColumns + lane;
    const std::int64_t last = (segment + 1) * s.per_segment < s.n ? (segment + 1) * s.per_segment : s.n;
    T sums[kColumnsToALane] = {};
    for (std::int64_t begin = segment * s.per_segment; begin < last; begin += kChunk) {
      const int length = static_cast<int>(last - begin < kChunk ? last - begin : kChunk);
      __syncthreads();  // all have read the last chunk
      for (int i = static_cast<int>(threadIdx.x); i < length; i += kThreads) chunk[i] = index[begin + i];
      __syncthreads();
      int count = 0;
      for (int i = 0; i < length; i += kWarpSize) {
        const bool hit = i + lane < length && wanted >= 0 && chunk[i + lane] == wanted;
        const unsigned hits = __ballot_sync(0xffffffffu, hit);
        if (hit) found[warp][count + __popc(hits & ((1u << lane) - 1u))] = static_cast<std::uint16_t>(i + lane);
        count += __popc(hits);
      }
      __syncwarp();
      const T* from = grad + (outer * s.n + begin) * s.inner + first_column;
#pragma unroll 4
      for (int f = 0; f < count; ++f) {
        const std::int64_t at = found[warp][f] * s.inner;
#pragma unroll
        for (int c = 0; c < kColumnsToALane; ++c)
          if (first_column + c * kWarpSize < s.inner) sums[c] = wrapping_sum<T>(sums[c], from[at + c * kWarpSize]);
      }
    }
    if (row < s.rows)
      for (int c = 0; c < kColumnsToALane; ++c)
        if (first_column + c * kWarpSize < s.inner)
          out[(segment * s.rows + row) * s.inner + first_column + c * kWarpSize] = sums[c];
  }
}

}  // namespace

void index_select_cuda(const Tensor& x, const Tensor& index, const Tensor& out, const char*) {
  if (out.numel() == 0) return;
  const cuda::Launch launch(out);
  const std::int64_t rows = out.size(0) * out.size(1), inner = out.size(2);
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::uint64_t missing = cuda::missing_word(x.dtype());
  const auto select = [&]<typename Word, int W>(std::int64_t words) {
    launch(select_kernel<Word, W>, cuda::blocks_for(rows * words / W), kThreads, static_cast<const Word*>(x.raw_data()),
           positions, static_cast<Word*>(out.raw_data()), static_cast<Word>(missing), rows, out.size(1), x.size(1),
           words / W);
  };
  const std::size_t bytes = element_size(x.dtype());
  const std::int64_t row_bytes = inner * static_cast<std::int64_t>(bytes);
  if (x.dtype() != kBool && row_bytes % 16 == 0 && cuda::aligned(x.raw_data(), 16) &&
      cuda::aligned(out.raw_data(), 16)) {
    select.template operator()<std::uint32_t, 4>(row_bytes / 4);
  } else {
    cuda::with_word(bytes, [&]<typename Word>() { select.template operator()<Word, 1>(inner); });
  }
}

void index_add_cuda(const Tensor& grad, const Tensor& index, const Tensor& out) {
  if (out.dtype() != kInt64) cuda::require_not_portable("a sum by index");
  if (grad.numel() == 0) return;
  constexpr std::int64_t kEnoughWarps = 4096, kLeastEntries = 256;
  AddShape s;
  s.n = grad.size(1);
  s.inner = grad.size(2);
  s.size = out.size(1);
  s.rows = out.size(0) * s.size;
  s.tiles = (s.inner + kColumns - 1) / kColumns;
  s.segments = out.dtype() == kInt64 ? 1
                                     : std::max<std::int64_t>(1, std::min(kEnoughWarps / (s.rows * s.tiles),
                                                                          (s.n + kLeastEntries - 1) / kLeastEntries));
  s.per_segment = (s.n + s.segments - 1) / s.segments;
  const Tensor sums = s.segments == 1 ? out : empty({s.segments, out.numel()}, options_of(out));
  const cuda::Launch launch(out);
  const auto blocks = cuda::blocks_for((s.rows + kWarps - 1) / kWarps * s.tiles * s.segments, 1);
  if (out.dtype() == kInt64) {
    launch(add_kernel<std::int64_t>, blocks, kThreads, grad.data<std::int64_t>(), index.data<std::int64_t>(),
           sums.data<std::int64_t>(), s);
  } else if (out.dtype() == kFloat64) {
    launch(add_kernel<double>, blocks, kThreads, grad.data<double>(), index.data<std::int64_t>(), sums.data<double>(),
           s);
  } else {
    launch(add_kernel<float>, blocks, kThreads, grad.data<float>(), index.data<std::int64_t>(), sums.data<float>(), s);
  }
  if (s.segments > 1) reduce_sum(sums, out.as_strided({1, out.numel()}, {out.numel(), 1}, out.offset()));
}

}  // namespace lockstep::detail
