#include <type_traits>

#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

void matmul_reference(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), batch = out.numel() / (m * n);
  const int last = a.dim() - 1;
  const std::int64_t a_row = a.strides()[last - 1], a_column = a.strides()[last];
  const std::int64_t b_row = b.strides()[last - 1], b_column = b.strides()[last];
  dispatch_numeric(out.dtype(), "matmul", [&]<typename T>() {
    // Unsigned integers wrap.
    using Sum =
        typename std::conditional_t<std::is_integral_v<T>, std::type_identity<std::uint64_t>, ComputeType<T>>::type;
    parallel_for(batch * m, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = a.data<T>() + matrix_offset(a, row / m) + row % m * a_row;
        const T* y = b.data<T>() + matrix_offset(b, row / m);
        for (std::int64_t j = 0; j < n; ++j) {
          Sum sum = 0;
          for (std::int64_t i = 0; i < k; ++i)
            sum += static_cast<Sum>(x[i * a_column]) * static_cast<Sum>(y[i * b_row + j * b_column]);
          out.data<T>()[row * n + j] = static_cast<T>(sum);
        }
      }
    });
  });
}

}  // namespace lockstep
