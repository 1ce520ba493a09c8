#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/philox_cuda.h"

namespace lockstep::cuda {
namespace {

__global__ void philox_uniform_kernel(float* data, std::int64_t count, float low, float scale, philox::Key key) {
  const std::int64_t quads = (count + 3) / 4;
  for (std::int64_t quad = global_thread(); quad < quads; quad += all_threads()) {
    const philox::Block words = philox::generate(key, static_cast<std::uint64_t>(quad));
    for (int j = 0; j < 4; ++j)
      if (quad * 4 + j < count) data[quad * 4 + j] = fmaf(philox::to_uniform(words.word[j]), scale, low);
  }
}

}  // namespace

void philox_uniform(float* data, std::int64_t count, float low, float high, philox::Key key, CUstream_st* stream) {
  if (count <= 0) return;
  const std::int64_t quads = (count + 3) / 4;
  launch_on(stream, philox_uniform_kernel, blocks_for(quads), kThreads, data, count, low, high - low, key);
}

}  // namespace lockstep::cuda
