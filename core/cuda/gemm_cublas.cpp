// Matrix products by cuBLASLt.
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/dynamic_library.h"
#include "lockstep/core/cuda/gemm.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/factories.h"

// The functions that are used here; see Note [Libraries of CUDA].
#define LOCKSTEP_CUBLASLT_FUNCTIONS(X)    \
  X(cublasLtCreate)                       \
  X(cublasLtGetStatusName)                \
  X(cublasLtGetStatusString)              \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)

namespace lockstep::cuda {
namespace {

struct Functions {
#define LOCKSTEP_MEMBER(name) decltype(&::name) name = LOCKSTEP_FUNCTION_OF(cublaslt_library(), name);
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_MEMBER)
#undef LOCKSTEP_MEMBER
};

const Functions& lt() {
  static const Functions functions;
  return functions;
}

[[noreturn]] void throw_cublaslt_error(const char* file, int line, const char* expression, cublasStatus_t status) {
  lockstep::detail::throw_error(fmt::format("cuBLASLt call {} failed at {}:{}: {} ({})", expression, file, line,
                                            lt().cublasLtGetStatusString(status), lt().cublasLtGetStatusName(status)));
}

// Throws Error with the expression, file:line and the library's own words unless the call succeeded.
#define LOCKSTEP_CUBLASLT_CHECK(expression)                                   \
  do {                                                                        \
    const cublasStatus_t lockstep_status = (expression);                      \
    if (lockstep_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                \
      throw_cublaslt_error(__FILE__, __LINE__, #expression, lockstep_status); \
  } while (false)

// What NVIDIA recommends for Hopper; a product takes what its algorithm needs of it, most take none.
constexpr std::size_t kWorkspaceBytes = 32 << 20;
// Of matrices in one call: kernels put the batch into a dimension of the grid that has 16 bits. A multiple of 8, so
// that the next call's matrices lie at kGemmAlignment again.
constexpr std::int64_t kMaxBatch = 65528;

template <auto create, auto destroy, typename Handle>
class Owned {
 public:
  template <typename... A>
  explicit Owned(A... arguments) {
    LOCKSTEP_CUBLASLT_CHECK((lt().*create)(&handle_, arguments...));
  }
  ~Owned() { (lt().*destroy)(handle_); }
  Owned(const Owned&) = delete;
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Description =
    Owned<&Functions::cublasLtMatmulDescCreate, &Functions::cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t>;
using Layout =
    Owned<&Functions::cublasLtMatrixLayoutCreate, &Functions::cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t>;
using Preference = Owned<&Functions::cublasLtMatmulPreferenceCreate, &Functions::cublasLtMatmulPreferenceDestroy,
                         cublasLtMatmulPreference_t>;

void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  LOCKSTEP_CUBLASLT_CHECK(lt().cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)));
}
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
  LOCKSTEP_CUBLASLT_CHECK(lt().cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof(value)));
}
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
  LOCKSTEP_CUBLASLT_CHECK(
      lt().cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::float16:
      return CUDA_R_16F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// Everything that the choice of an algorithm may depend on.
struct Key {
  DType dtype;
  std::int64_t m, n, k, batch;
  std::int64_t a_stride, a_batch, b_stride, b_batch, out_stride, out_batch;
  bool a_transposed, b_transposed, accumulates, bias, relu, tf32, deterministic;
  auto operator<=>(const Key&) const = default;
};

Key key_of(const Gemm& g) {
  return {g.dtype,
          g.m,
          g.n,
          g.k,
          g.batch,
          g.a.stride,
          g.a.batch_stride,
          g.b.stride,
          g.b.batch_stride,
          g.out_stride,
          g.out_batch_stride,
          g.a.transposed,
          g.b.transposed,
          g.beta != 0.0,
          g.bias != nullptr,
          g.relu,
          allow_tf32(),
          deterministic()};
}

// Note [Row-major products]
// The library's matrices are column-major: what is stored row-major is the transpose to it. So out^T = b^T * a^T is
// computed, in which the library's first matrix is b, its second is a, neither is moved, and the bias, one value a row
// of out^T, is one a column of out.
class Plan {
 public:
  explicit Plan(const Gemm& g, cublasLtHandle_t handle)
      : description_(compute_type(g.dtype), g.dtype == kFloat64 ? CUDA_R_64F : CUDA_R_32F),
        first_(data_type(g.dtype), rows(g.b, g.n, g.k), rows(g.b, g.k, g.n), g.b.stride),
        second_(data_type(g.dtype), rows(g.a, g.k, g.m), rows(g.a, g.m, g.k), g.a.stride),
        out_(data_type(g.dtype), static_cast<std::uint64_t>(g.n), static_cast<std::uint64_t>(g.m), g.out_stride) {
    set(description_, CUBLASLT_MATMUL_DESC_TRANSA, g.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description_, CUBLASLT_MATMUL_DESC_TRANSB, g.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_batch(first_, g.batch, g.b.batch_stride);
    set_batch(second_, g.batch, g.a.batch_stride);
    set_batch(out_, g.batch, g.out_batch_stride);
    // Where the library can do the end too, it does.
    if (g.bias || g.relu) {
      set(description_, CUBLASLT_MATMUL_DESC_EPILOGUE,
          g.bias ? (g.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS) : CUBLASLT_EPILOGUE_RELU);
      if (g.bias) {
        set(description_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(g.dtype)));
        // Not read, but its alignment is what the algorithm may rely on: with that of an element alone, half types get
        // kernels that read one element at a time.
        set(description_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(kGemmAlignment));
      }
      fused_ = choose(handle, true);
      if (fused_) return;
      set(description_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    }
    LOCKSTEP_CHECK(choose(handle, false),
                   "[gemm] cuBLASLt has no algorithm for {} products of {} x {} by {} x {} in {}; use another dtype",
                   g.batch, g.m, g.k, g.k, g.n, name(g.dtype));
  }

  void run(const Gemm& g, cublasLtHandle_t handle, int device) {
    // From the allocator, which hands it to the stream's next product when this one has been queued.
    Tensor workspace;
    if (workspace_bytes_ > 0)
      workspace = empty({static_cast<std::int64_t>(workspace_bytes_)}, {.dtype = kUInt8, .device = {kCUDA, device}});
    Tensor bias;
    if (fused_ && g.bias) set(description_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned_bias(g, device, bias));
    const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
    const bool wide = g.dtype == kFloat64;
    LOCKSTEP_CUBLASLT_CHECK(lt().cublasLtMatmul(
        handle, description_.get(), wide ? static_cast<const void*>(&g.alpha) : &alpha, g.b.data, first_.get(),
        g.a.data, second_.get(), wide ? static_cast<const void*>(&g.beta) : &beta, g.out, out_.get(), g.out, out_.get(),
        &algorithm_, workspace_bytes_ > 0 ? workspace.raw_data() : nullptr, workspace_bytes_,
        Stream::current(device).handle()));
    if (!fused_ && (g.bias || g.relu)) detail::add_bias_relu(g, device);
  }

 private:
  // The bias, or a copy of it that lies as an algorithm may ask for.
  static const void* aligned_bias(const Gemm& g, int device, Tensor& copy) {
    if (reinterpret_cast<std::uintptr_t>(g.bias) % kGemmAlignment == 0) return g.bias;
    copy = empty({g.n}, {.dtype = g.dtype, .device = {kCUDA, device}});
    LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(copy.raw_data(), g.bias, copy.nbytes(), cudaMemcpyDeviceToDevice,
                                        Stream::current(device).handle()));
    return copy.raw_data();
  }

  static cublasComputeType_t compute_type(DType dtype) {
    if (dtype == kFloat64) return CUBLAS_COMPUTE_64F;
    return dtype == kFloat32 && allow_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }

  static std::uint64_t rows(const GemmOperand& operand, std::int64_t plain, std::int64_t transposed) {
    return static_cast<std::uint64_t>(operand.transposed ? transposed : plain);
  }

  static void set_batch(const Layout& layout, std::int64_t count, std::int64_t stride) {
    if (count == 1) return;
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }

  bool choose(cublasLtHandle_t handle, bool fused) {
    const Preference preference;
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(preference, attribute, static_cast<std::uint32_t>(kGemmAlignment));
    // Sums that were cut into parts are added in a pass of their own, in order; the other schemes add parts as they
    // come.
    if (deterministic())
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        lt().cublasLtMatmulAlgoGetHeuristic(handle, description_.get(), first_.get(), second_.get(), out_.get(),
                                            out_.get(), preference.get(), 1, &result, &count);
    // How it refuses an end to a product depends on the release.
    const bool refused = status == CUBLAS_STATUS_INVALID_VALUE && fused;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || refused) return false;
    LOCKSTEP_CUBLASLT_CHECK(status);
    if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return false;
    algorithm_ = result.algo;
    workspace_bytes_ = result.workspaceSize;
    return true;
  }

  Description description_;
  Layout first_, second_, out_;
  cublasLtMatmulAlgo_t algorithm_{};
  std::size_t workspace_bytes_ = 0;
  bool fused_ = true;
};

// A handle and its plans, used by one thread at a time.
struct Context {
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

// Contexts of threads that have ended wait here for others. Never destroyed: the driver may be gone by then.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<Context*>> free;  // by device
};
Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

class ThreadContexts {
 public:
  ~ThreadContexts() {
    const std::lock_guard lock(pool().mutex);
    for (const auto& [device, context] : contexts_) pool().free[device].push_back(context);
  }

  // The device is the present one.
  Context& of(int device) {
    Context*& context = contexts_[device];
    if (!context) context = take(device);
    return *context;
  }

 private:
  static Context* take(int device) {
    {
      const std::lock_guard lock(pool().mutex);
      auto& free = pool().free[device];
      if (!free.empty()) {
        Context* context = free.back();
        free.pop_back();
        return context;
      }
    }
    auto context = std::make_unique<Context>();
    // It allocates memory, which is forbidden to a thread that captures a graph unless it says so.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cublasStatus_t status = lt().cublasLtCreate(&context->handle);
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    LOCKSTEP_CUBLASLT_CHECK(status);
    return context.release();
  }

  std::map<int, Context*> contexts_;
};

void multiply(const Gemm& problem, int device) {
  thread_local ThreadContexts contexts;
  Context& context = contexts.of(device);
  constexpr std::size_t kMaxPlans = 4096;  // only a program whose shapes never repeat comes there
  if (context.plans.size() >= kMaxPlans) context.plans.clear();
  std::unique_ptr<Plan>& plan = context.plans[key_of(problem)];
  if (!plan) plan = std::make_unique<Plan>(problem, context.handle);
  plan->run(problem, context.handle, device);
}

const void* advance(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * static_cast<std::int64_t>(element_size(dtype));
}

}  // namespace

void require_gemm() {
  lt();
}

void gemm(const Gemm& problem, int device) {
  for (const void* data : {problem.a.data, problem.b.data, static_cast<const void*>(problem.out)})
    LOCKSTEP_ASSERT(reinterpret_cast<std::uintptr_t>(data) % kGemmAlignment == 0, "a matrix at {}", data);
  LOCKSTEP_ASSERT(problem.m > 0 && problem.n > 0 && problem.k > 0 && problem.batch > 0, "{} x {} x {}, {} times",
                  problem.m, problem.n, problem.k, problem.batch);
  if (portable()) return detail::gemm_portable(problem, device);
  const DeviceGuard guard(device);
  if (problem.batch <= kMaxBatch) return multiply(problem, device);
  for (std::int64_t first = 0; first < problem.batch; first += kMaxBatch) {
    Gemm part = problem;
    part.batch = std::min(kMaxBatch, problem.batch - first);
    part.a.data = advance(problem.a.data, first * problem.a.batch_stride, problem.dtype);
    part.b.data = advance(problem.b.data, first * problem.b.batch_stride, problem.dtype);
    part.out = const_cast<void*>(advance(problem.out, first * problem.out_batch_stride, problem.dtype));
    multiply(part, device);
  }
}

}  // namespace lockstep::cuda
