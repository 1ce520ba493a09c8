// The cost of an operation that does next to nothing: x = x + 1 on 16 elements, 1,000 in a chain, gradients on.
// bench/run_op_overhead.py starts it, beside the same in libtorch.

#include "bench/op_overhead.h"

#include <lockstep/lockstep.h>

int main() {
  using namespace lockstep;
  using Clock = std::chrono::steady_clock;
  set_num_threads(1);
  const Tensor leaf = ones({op_overhead::kElements});
  leaf.set_requires_grad(true);
  const Tensor seed = ones({op_overhead::kElements});
  op_overhead::run("lockstep", [&]() -> op_overhead::Times {
    leaf.set_grad({});
    const auto start = Clock::now();
    Tensor x = leaf;
    for (int i = 0; i < op_overhead::kChain; ++i) x = x + 1.0;
    const double forward = op_overhead::since(start);
    const auto middle = Clock::now();
    x.backward(seed);
    return {forward, op_overhead::since(middle)};
  });
}
