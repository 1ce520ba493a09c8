#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/optim/gradients.h"

namespace lockstep::optim::detail {
namespace {

constexpr std::int64_t kChunk = 8192;  // elements of a block's work
constexpr int kBatch = 64;             // gradients of a launch; they travel as its arguments

/// Gradients of one dtype. Chunks are counted through all of them; none holds elements of two, so that sums do not
/// depend on where gradients lie.
struct Batch {
  int count = 0;
  std::int64_t chunks = 0;
  void* data[kBatch];
  std::int64_t numel[kBatch];
  std::int64_t first_chunk[kBatch];
};

/// f(data, elements) for every chunk; all threads of a block come with the same.
template <typename T, typename F>
__device__ void for_each_chunk(const Batch& batch, F f) {
  int at = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < batch.chunks; chunk += gridDim.x) {
    while (at + 1 < batch.count && batch.first_chunk[at + 1] <= chunk) ++at;
    const std::int64_t begin = (chunk - batch.first_chunk[at]) * kChunk;
    const std::int64_t rest = batch.numel[at] - begin;
    f(chunk, static_cast<T*>(batch.data[at]) + begin, rest < kChunk ? rest : kChunk);
  }
}

template <typename T>
__global__ void squares_kernel(Batch batch, double* partial) {
  for_each_chunk<T>(batch, [&](std::int64_t chunk, const T* data, std::int64_t count) {
    double sum = 0.0;
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const double value = cuda::from_element<double>(data[i]);
      sum += value * value;
    }
    sum = cuda::block_sum(sum);
    if (threadIdx.x == 0) partial[chunk] = sum;
  });
}

// One block.
__global__ void norm_kernel(const double* partial, std::int64_t count, double max_norm, double* norm) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = cuda::block_sum(sum);
  if (threadIdx.x == 0) {
    norm[0] = std::sqrt(sum);
    norm[1] = max_norm / (norm[0] + 1e-6);
  }
}

// Functors of C: nothing() to leave a block's elements alone, then value by value.
template <typename C>
struct Scale {
  const double* norm;
  __device__ bool nothing() const { return norm[1] >= 1.0; }
  __device__ C operator()(C x) const { return x * static_cast<C>(norm[1]); }
};
template <typename C>
struct Clamp {
  C limit;
  __device__ bool nothing() const { return false; }
  __device__ C operator()(C x) const { return x < -limit ? -limit : x > limit ? limit : x; }
};
template <typename C>
struct Unscale {
  C factor;
  int* overflowed;
  __device__ bool nothing() const { return false; }
  __device__ C operator()(C x) const {
    const C result = x * factor;
    // Whoever comes writes the same.
    if (!(result - result == C(0))) *overflowed = 1;
    return result;
  }
};

template <typename C>
struct UnscaleBy {
  double* words;
  __device__ bool nothing() const { return false; }
  __device__ C operator()(C x) const {
    const C result = x * static_cast<C>(words[kInverse]);
    // Whoever comes writes the same.
    if (!(result - result == C(0))) words[kOverflowed] = 1.0;
    return result;
  }
};

// One thread.
__global__ void scaler_begin_kernel(double* words) {
  words[kInverse] = 1.0 / words[kScale];
  words[kOverflowed] = 0.0;
}

// One thread.
__global__ void scaler_update_kernel(double* words, double growth, double backoff, double interval) {
  if (words[kOverflowed] != 0.0) {
    const double less = words[kScale] * backoff;
    words[kScale] = less > kSmallestScale ? less : kSmallestScale;
    words[kSkipped] += 1.0;
    words[kGoodSteps] = 0.0;
    return;
  }
  words[kGoodSteps] += 1.0;
  if (words[kGoodSteps] == interval) {
    words[kScale] *= growth;
    words[kGoodSteps] = 0.0;
  }
}

template <typename T, typename F>
__global__ void change_kernel(Batch batch, F f) {
  using C = compute_t<T>;
  if (f.nothing()) return;
  for_each_chunk<T>(batch, [&](std::int64_t, T* data, std::int64_t count) {
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
      data[i] = cuda::to_element<T>(f(cuda::from_element<C>(data[i])));
  });
}

/// Gradients as contiguous tensors; what is not contiguous is copied, and written back by write_back().
struct Dense {
  Gradients tensors;
  std::vector<std::pair<Tensor, Tensor>> copies;  // copy, original

  explicit Dense(const Gradients& gradients) {
    for (const Tensor& grad : gradients) {
      tensors.push_back(as_contiguous(grad));
      if (!grad.is_contiguous()) copies.emplace_back(tensors.back(), grad);
    }
  }
  void write_back() const {
    for (const auto& [copy, original] : copies) copy_values(copy, original);
  }
};

/// f(batch) for the gradients of dtype T, in their order.
template <typename T, typename F>
void for_each_batch(const Gradients& gradients, F&& f) {
  Batch batch;
  for (const Tensor& grad : gradients) {
    if (grad.dtype() != dtype_of<T>) continue;
    if (batch.count == kBatch) {
      f(batch);
      batch = {};
    }
    batch.data[batch.count] = grad.raw_data();
    batch.numel[batch.count] = grad.numel();
    batch.first_chunk[batch.count++] = batch.chunks;
    batch.chunks += (grad.numel() + kChunk - 1) / kChunk;
  }
  if (batch.count > 0) f(batch);
}

template <typename F>
void for_each_dtype(F&& f) {
  f.template operator()<float>();
  f.template operator()<double>();
  f.template operator()<Half>();
  f.template operator()<BFloat16>();
}

/// In place; make.operator()<C>() gives the functor.
template <typename Make>
void change(const Gradients& gradients, Make&& make) {
  const Dense dense(gradients);
  const cuda::Launch launch(gradients.front());
  for_each_dtype([&]<typename T>() {
    using C = compute_t<T>;
    for_each_batch<T>(dense.tensors, [&](const Batch& batch) {
      const auto functor = make.template operator()<C>();
      launch(change_kernel<T, std::remove_const_t<decltype(functor)>>, cuda::blocks_for(batch.chunks, 1),
             cuda::kThreads, batch, functor);
    });
  });
  dense.write_back();
}

}  // namespace

void grad_norm_cuda(const Gradients& gradients, double max_norm, const Tensor& norm) {
  cuda::require_not_portable("clip_grad_norm_");
  const Dense dense(gradients);
  std::int64_t chunks = 0;
  for (const Tensor& grad : gradients) chunks += (grad.numel() + kChunk - 1) / kChunk;
  const Tensor partial = empty({chunks}, options_of(norm));
  const cuda::Launch launch(norm);
  double* next = static_cast<double*>(partial.raw_data());
  for_each_dtype([&]<typename T>() {
    for_each_batch<T>(dense.tensors, [&](const Batch& batch) {
      launch(squares_kernel<T>, cuda::blocks_for(batch.chunks, 1), cuda::kThreads, batch, next);
      next += batch.chunks;
    });
  });
  launch(norm_kernel, 1, cuda::kThreads, static_cast<const double*>(partial.raw_data()), chunks, max_norm,
         static_cast<double*>(norm.raw_data()));
}

void grad_scale_cuda(const Gradients& gradients, const Tensor& norm) {
  change(gradients, [&]<typename C>() { return Scale<C>{static_cast<const double*>(norm.raw_data())}; });
}

void grad_clamp_cuda(const Gradients& gradients, double limit) {
  change(gradients, [&]<typename C>() { return Clamp<C>{static_cast<C>(limit)}; });
}

void grad_unscale_cuda(const Gradients& gradients, double factor, const Tensor& overflowed) {
  change(gradients, [&]<typename C>() {
    return Unscale<C>{static_cast<C>(factor), static_cast<int*>(overflowed.raw_data())};
  });
}

void grad_unscale_by_cuda(const Gradients& gradients, const Tensor& words) {
  double* data = static_cast<double*>(words.raw_data());
  {
    const cuda::Launch launch(words);
    launch(scaler_begin_kernel, 1, 1, data);
  }
  change(gradients, [&]<typename C>() { return UnscaleBy<C>{data}; });
}

void scaler_update_cuda(const Tensor& words, double growth, double backoff, std::int64_t interval) {
  const cuda::Launch launch(words);
  launch(scaler_update_kernel, 1, 1, static_cast<double*>(words.raw_data()), growth, backoff,
         static_cast<double>(interval));
}

}  // namespace lockstep::optim::detail
