#include "lockstep/autograd/ops/multinomial/multinomial_kernels.h"
#include "lockstep/core/cuda/launch.cuh"

namespace lockstep::detail {
namespace {

__global__ void multinomial_kernel(const double* probabilities, std::int64_t* drawn, philox::KeySource key,
                                   std::int64_t total, std::int64_t count, std::int64_t classes) {
  for (std::int64_t i = cuda::global_thread(); i < total; i += cuda::all_threads())
    drawn[i] =
        draw_class(probabilities + i / count * classes, classes, uniform_at(key.get(), static_cast<std::uint64_t>(i)));
}

}  // namespace

void multinomial_cuda(const Tensor& probabilities, const Tensor& drawn, const philox::KeySource& key) {
  const cuda::Launch launch(probabilities);
  launch(multinomial_kernel, cuda::blocks_for(drawn.numel()), cuda::kThreads, probabilities.data<double>(),
         drawn.data<std::int64_t>(), key, drawn.numel(), drawn.size(1), probabilities.size(1));
}

}  // namespace lockstep::detail
