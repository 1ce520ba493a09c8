#include <cstring>

#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/memory.h"

namespace lockstep::cuda {
namespace {

// Half of what all the arguments of a kernel may take.
struct Words {
  std::uint64_t word[256];
};

__global__ void store_kernel(Words words, std::uint64_t* target, int count) {
  if (static_cast<int>(threadIdx.x) < count) target[threadIdx.x] = words.word[threadIdx.x];
}

}  // namespace

void store(const void* source, void* target, std::size_t bytes, int device) {
  const DeviceGuard guard(device);
  for (std::size_t begin = 0; begin < bytes; begin += sizeof(Words)) {
    Words words{};
    const std::size_t size = std::min(sizeof(Words), bytes - begin);
    std::memcpy(words.word, static_cast<const char*>(source) + begin, size);
    launch_on(Stream::current(device).handle(), store_kernel, 1, kThreads, words,
              reinterpret_cast<std::uint64_t*>(static_cast<char*>(target) + begin),
              static_cast<int>(size / sizeof(std::uint64_t)));
  }
}

}  // namespace lockstep::cuda
