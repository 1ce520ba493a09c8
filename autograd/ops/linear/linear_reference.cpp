#include "lockstep/autograd/ops/linear/linear_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

void linear_forward_reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  const std::int64_t rows = x.sizes()[0], inputs = x.sizes()[1], outputs = weight.sizes()[0];
  dispatch_floating(x.dtype(), "linear", [&]<typename T>() {
    using C = compute_t<T>;
    parallel_for(rows, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t j = 0; j < outputs; ++j) {
          C sum = 0;
          for (std::int64_t p = 0; p < inputs; ++p)
            sum += static_cast<C>(x.data<T>()[i * inputs + p]) * static_cast<C>(weight.data<T>()[j * inputs + p]);
          if (bias.defined()) sum += static_cast<C>(bias.data<T>()[j]);
          if (relu && sum < C(0)) sum = 0;
          out.data<T>()[i * outputs + j] = static_cast<T>(sum);
        }
      }
    });
  });
}

}  // namespace lockstep
