#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/philox_cuda.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;

__global__ void philox_uniform_kernel(float* data, std::int64_t count, float low, float scale, philox::Key key) {
  const std::int64_t quads = (count + 3) / 4;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t quad = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; quad < quads;
       quad += stride) {
    const philox::Block words = philox::generate(key, static_cast<std::uint64_t>(quad));
    for (int j = 0; j < 4; ++j)
      if (quad * 4 + j < count) data[quad * 4 + j] = fmaf(philox::to_uniform(words.word[j]), scale, low);
  }
}

}  // namespace

void philox_uniform(float* data, std::int64_t count, float low, float high, philox::Key key, CUstream_st* stream) {
  if (count <= 0) return;
  const std::int64_t quads = (count + 3) / 4;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((quads + kThreads - 1) / kThreads, kMaxBlocks));
  philox_uniform_kernel<<<blocks, kThreads, 0, stream>>>(data, count, low, high - low, key);
  LOCKSTEP_CUDA_CHECK_LAUNCH();
}

}  // namespace lockstep::cuda
