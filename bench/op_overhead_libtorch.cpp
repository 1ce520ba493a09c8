// The peer of op_overhead in libtorch. Built only where libtorch is installed.

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "bench/op_overhead.h"

int main() {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(1);
  torch::Tensor leaf = torch::ones({op_overhead::kElements}, torch::requires_grad());
  const torch::Tensor seed = torch::ones({op_overhead::kElements});
  op_overhead::run("libtorch " TORCH_VERSION, [&]() -> op_overhead::Times {
    leaf.mutable_grad() = torch::Tensor();
    const auto start = Clock::now();
    torch::Tensor x = leaf;
    for (int i = 0; i < op_overhead::kChain; ++i) x = x + 1.0;
    const double forward = op_overhead::since(start);
    const auto middle = Clock::now();
    x.backward(seed);
    return {forward, op_overhead::since(middle)};
  });
}
