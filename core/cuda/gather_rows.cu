#include <cstddef>

#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/gather_rows.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/quotient.cuh"

namespace lockstep::cuda {
namespace {

/// Rows as words of W bytes: what they mean does not matter.
template <int W>
struct alignas(W) Word {
  unsigned char bytes[W];
};

template <int W>
__global__ void gather_rows_kernel(const Word<W>* source, const std::int64_t* indices, Word<W>* target,
                                   std::int64_t rows, std::int64_t words) {
  for (std::int64_t i = global_thread(); i < rows * words; i += all_threads()) {
    const std::int64_t row = quotient(i, words);
    target[i] = source[indices[row] * words + i - row * words];
  }
}

template <int W>
bool gather(const Launch& launch, const Tensor& source, const Tensor& indices, const Tensor& target,
            std::int64_t row_bytes) {
  if (row_bytes % W != 0 || !aligned(source.raw_data(), W) || !aligned(target.raw_data(), W)) return false;
  const std::int64_t words = row_bytes / W;
  launch(gather_rows_kernel<W>, blocks_for(indices.numel() * words), kThreads,
         static_cast<const Word<W>*>(source.raw_data()), static_cast<const std::int64_t*>(indices.raw_data()),
         static_cast<Word<W>*>(target.raw_data()), indices.numel(), words);
  return true;
}

}  // namespace

void gather_rows(const Tensor& source, const Tensor& indices, const Tensor& target) {
  if (target.numel() == 0) return;
  const Launch launch(target);
  const std::int64_t row_bytes = static_cast<std::int64_t>(target.nbytes()) / indices.numel();
  if (gather<16>(launch, source, indices, target, row_bytes)) return;
  if (gather<8>(launch, source, indices, target, row_bytes)) return;
  if (gather<4>(launch, source, indices, target, row_bytes)) return;
  if (gather<2>(launch, source, indices, target, row_bytes)) return;
  gather<1>(launch, source, indices, target, row_bytes);
}

}  // namespace lockstep::cuda
