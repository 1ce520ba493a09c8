#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/distributed/nccl/combine.h"

namespace lockstep::distributed::nccl {
namespace {

template <typename C>
struct Quotient {
  C divisor;
  __device__ C operator()(C value) const { return value / divisor; }
};
template <typename C>
struct Sum {
  __device__ C operator()(C a, C b) const { return a + b; }
};
template <typename C>
struct QuotientBy {
  const double* divisor;
  __device__ C operator()(C value) const { return value / static_cast<C>(*divisor); }
};

}  // namespace

void divide(const Tensor& values, double divisor) {
  dispatch_compute(values.dtype(), "all_reduce", [&]<typename C>() {
    cuda::map<C>(values, Quotient<C>{static_cast<C>(divisor)}, cuda::Input<C>(values));
  });
}

void add(const Tensor& sum, const Tensor& other) {
  dispatch_compute(sum.dtype(), "all_reduce_tree",
                   [&]<typename C>() { cuda::map<C>(sum, Sum<C>(), cuda::Input<C>(sum), cuda::Input<C>(other)); });
}

void finish(const Tensor& output, const Tensor& sum, const Tensor& divisor) {
  if (!divisor.defined()) return copy_values(sum, output);
  dispatch_compute(output.dtype(), "all_reduce_tree", [&]<typename C>() {
    cuda::map<C>(output, QuotientBy<C>{divisor.data<double>()}, cuda::Input<C>(sum));
  });
}

}  // namespace lockstep::distributed::nccl
