// The emulated device itself: it must show the mistakes that it is there for. Note [Emulated device].

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/allocator.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "lockstep/emulated/core/faults.h"
#include "lockstep/emulated/core/memory.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using cuda::Event;
using cuda::Stream;
using cuda::StreamGuard;
using cuda::emulated::enqueue_kernel;
namespace faults = cuda::emulated::faults;

const Device kDevice{kCUDA, 0};

float sum_of(const Tensor& x) {
  float sum = 0;
  for (const float value : x.to_vector<float>()) sum += value;
  return sum;
}

TEST(EmulatedDevice, TestsAreGivenFour) {
  int count = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 4) << "set LOCKSTEP_EMULATED_CUDA_DEVICES=4, as ctest does";
}

TEST(EmulatedDevice, TheHostCannotTouchItsMemory) {
  const Tensor x = zeros({16}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  EXPECT_DEATH(*static_cast<volatile float*>(x.raw_data()) = 1.0f, "");
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(16, 0.0f));
}

TEST(EmulatedDevice, AMissingWaitShows) {
  const Stream first = Stream::from_pool(0), second = Stream::from_pool(0);
  const Tensor x = zeros({16}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  {
    const StreamGuard guard(first);
    fill_values(x, 1.0);
  }
  const StreamGuard guard(second);
  EXPECT_EQ(sum_of(x), 0.0f);  // the second stream was never told to wait
  first.synchronize();
  EXPECT_EQ(sum_of(x), 16.0f);
}

TEST(EmulatedDevice, PinnedMemoryIsReadLate) {
  const Stream stream = Stream::from_pool(0);
  void* pinned = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault));
  *static_cast<float*>(pinned) = 1.0f;
  const Tensor x = zeros({1}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(x.raw_data(), pinned, 4, cudaMemcpyDefault, stream.handle()));
  *static_cast<float*>(pinned) = 2.0f;  // too early, and seen to be
  stream.synchronize();
  EXPECT_EQ(x.item<float>(), 2.0f);
  LOCKSTEP_CUDA_CHECK(cudaFreeHost(pinned));
}

void block_sum(const float* in, float* out) {
  __shared__ float partial[4];
  float value = in[threadIdx.x];
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}

TEST(EmulatedDevice, WarpsAndBlocksExchangeValues) {
  const cuda::DeviceGuard guard(0);
  const Tensor x = move_values(make_input({128}, 1, kFloat32), kDevice);
  const Tensor out = zeros({3}, {.device = kDevice});
  enqueue_kernel(block_sum, 3, 128, nullptr, static_cast<const float*>(x.raw_data()),
                 static_cast<float*>(out.raw_data()));
  for (const float value : out.to_vector<float>()) EXPECT_NEAR(value, sum_of(x), 1e-5);
}

void all_lanes_sum(float* out) {
  float value = 1.0f;
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  out[threadIdx.x] = value;
}

TEST(EmulatedDevice, ALanesLastWordIsThereAfterItsEnd) {
  const cuda::DeviceGuard guard(0);
  const Tensor out = zeros({96}, {.device = kDevice});
  enqueue_kernel(all_lanes_sum, 1, 96, nullptr, static_cast<float*>(out.raw_data()));
  for (const float value : out.to_vector<float>()) EXPECT_EQ(value, 32.0f);
}

void diverges(float* out) {
  if (threadIdx.x == 3) out[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  __syncthreads();
}

TEST(EmulatedDevice, ABarrierThatOthersMissIsAnError) {
  const cuda::DeviceGuard guard(0);
  const Tensor out = zeros({1}, {.device = kDevice});
  // Lane 3 waits for its warp, whose other lanes wait for the block.
  enqueue_kernel(diverges, 1, 64, nullptr, static_cast<float*>(out.raw_data()));
  EXPECT_NE(error_of([&] { Stream::default_of(0).synchronize(); }).find("cannot go on"), std::string::npos);
}

TEST(EmulatedDevice, WaitingUnderACaptureBreaksIt) {
  const Stream stream = Stream::from_pool(0);
  const Tensor x = zeros({16}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  EXPECT_NE(error_of([&] { stream.synchronize(); }).find("capturing"), std::string::npos);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream.handle(), &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  cudaGetLastError();
}

TEST(EmulatedDevice, AGraphDoesNothingUntilItIsLaunchedAndThenAllOfIt) {
  const Stream stream = Stream::from_pool(0), side = Stream::from_pool(0);
  const Tensor x = zeros({16}, {.device = kDevice}), y = zeros({16}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  {
    const StreamGuard guard(stream);
    fill_values(x, 2.0);
    Event ready(0);
    ready.record(stream);
    side.wait(ready);
    Event done(0);
    {
      const StreamGuard on_side(side);
      copy_values(x, y);
      done.record(side);
    }
    stream.wait(done);
  }
  cudaGraph_t graph = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &graph));
  cudaGraphExec_t exec = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_EQ(sum_of(y), 0.0f);
  LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(exec, stream.handle()));
  stream.synchronize();
  EXPECT_EQ(sum_of(y), 32.0f);
  LOCKSTEP_CUDA_CHECK(cudaGraphExecDestroy(exec));
  LOCKSTEP_CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST(EmulatedDevice, ACaptureKeepsTheAddressOfPageableMemory) {
  const Stream stream = Stream::create(0);
  const Tensor x = zeros({1}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  float value = 1.0f;
  const cuda::Graph graph = cuda::Graph::capture(stream, [&] {
    LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(x.raw_data(), &value, 4, cudaMemcpyDefault, stream.handle()));
  });
  value = 2.0f;
  graph.launch();
  stream.synchronize();
  EXPECT_EQ(x.item<float>(), 2.0f);
}

TEST(EmulatedDevice, AnEventOfACaptureCannotBeAskedAbout) {
  const Stream stream = Stream::create(0);
  Event event(0);
  const cuda::Graph graph = cuda::Graph::capture(stream, [&] { event.record(stream); });
  EXPECT_NE(error_of([&] { event.is_done(); }).find("cudaErrorCapturedEvent"), std::string::npos);
  EXPECT_NE(error_of([&] { event.synchronize(); }).find("cudaErrorCapturedEvent"), std::string::npos);
}

TEST(EmulatedDevice, AFailureStays) {
  const Stream stream = Stream::default_of(0);
  faults::fail_device(cudaErrorIllegalAddress);
  EXPECT_NE(error_of([&] { stream.synchronize(); }).find("illegal memory access"), std::string::npos);
  EXPECT_NE(error_of([&] { zeros({1}, {.device = kDevice}); }).find("illegal memory access"), std::string::npos);
  faults::fail_device(cudaSuccess);
  stream.synchronize();
}

TEST(EmulatedDevice, WorkThatFailsLateIsMetByWhoWaitsAndTheDeviceDoesNoMore) {
  const Device other(kCUDA, 1);
  const Tensor there = zeros({16}, {.device = other});
  const Tensor x = zeros({16}, {.device = kDevice});
  Stream::default_of(0).synchronize();
  faults::fail_work(0, 1, cudaErrorIllegalAddress);
  fill_values(x, 1.0);
  fill_values(x, 2.0);  // fails, and nobody says so yet
  fill_values(x, 3.0);
  EXPECT_NE(error_of([&] { Stream::default_of(0).synchronize(); }).find("illegal memory access"), std::string::npos);
  EXPECT_NE(error_of([&] { fill_values(x, 4.0); }).find("illegal memory access"), std::string::npos);
  fill_values(there, 5.0);
  EXPECT_EQ(sum_of(there), 80.0f);  // another device goes on
  faults::fail_device(cudaSuccess);
  EXPECT_EQ(sum_of(x), 16.0f);
}

// --- of what stands on it: mistakes that a real device punishes -----------------------------------------------------

TEST(DeviceMemory, ATensorFreedDuringACaptureDoesNoHarm) {
  const Stream captured = Stream::create(0);
  Tensor x = zeros({1000}, {.device = kDevice});
  cuda::record_stream(x, captured);
  const cuda::Graph graph = cuda::Graph::capture(captured, [&] { x = Tensor(); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sum_of(ones({1000}, {.device = kDevice})), 1000.0f);
    captured.synchronize();
  }
}

TEST(DeviceMemory, ATensorMayGoAfterTheDeviceHasFailed) {
  const Stream other = Stream::from_pool(0);
  Tensor x = zeros({1000}, {.device = kDevice});
  cuda::record_stream(x, other);
  faults::fail_device(cudaErrorIllegalAddress);
  x = Tensor();  // ends the process if it throws
  faults::fail_device(cudaSuccess);
}

TEST(DeviceMemory, MayEndAtAnyAllocation) {
  const auto compute = [] {
    const Tensor a = full({40, 40}, 1.0, {.device = kDevice}), b = full({1 << 19}, 2.0, {.device = kDevice});
    sum_of(a.matmul(a));
  };
  int failures = 0;
  for (bool ends = false; !ends; ++failures) {
    allocator(kCUDA).empty_cache();
    faults::fail_allocation(failures);
    try {
      compute();
      ends = true;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
    }
    faults::fail_allocation(-1);
    compute();
  }
  EXPECT_GE(failures, 2);
}

/// The loss of a second step of a small model, which is captured in a graph.
float captured_loss() {
  const Stream stream = Stream::create(0);
  const StreamGuard guard(stream);
  const Tensor weight = move_values(make_input({10, 60000}, 1, kFloat32, -0.01, 0.01), kDevice);
  const Tensor x = move_values(make_input({4, 60000}, 2, kFloat32), kDevice);
  const Tensor target = zeros({4}, {.dtype = kInt64, .device = kDevice}), out = zeros({1}, {.device = kDevice});
  weight.set_requires_grad(true);
  optim::SGD optimizer({weight}, {.lr = 0.1, .momentum = 0.9});
  const auto step = [&] {
    const Tensor loss = cross_entropy(linear(x, weight).relu(), target);
    loss.backward();
    optimizer.step();
    copy_values(loss.detach().reshape({1}), out);
  };
  step();
  stream.synchronize();
  const cuda::Graph graph = cuda::Graph::capture(stream, step);
  optimizer.prepare_step();
  graph.launch();
  stream.synchronize();
  return out.item<float>();
}

TEST(DeviceMemory, ACapturedStepMayEndAtAnyAllocation) {
  const float expected = captured_loss();
  int failures = 0;
  for (bool ends = false; !ends; ++failures) {
    ASSERT_LT(failures, 1000);
    allocator(kCUDA).empty_cache();
    faults::fail_allocation(failures);
    try {
      EXPECT_EQ(captured_loss(), expected);
      ends = true;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
    }
    faults::fail_allocation(-1);
    EXPECT_EQ(captured_loss(), expected);
  }
  EXPECT_GE(failures, 3);
}

TEST(DeviceMemory, HostMemoryMayChangeAsSoonAsItWasCopied) {
  Tensor host = ones({1000});
  const Tensor x = host.to(kDevice);
  fill_values(host, 7.0);
  EXPECT_EQ(sum_of(x), 1000.0f);
}

// In a process of its own, which has used no device yet.
TEST(Contexts, ARankOnAnotherDeviceLeavesTheFirstAlone) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_the_second = [] {
    const Device mine(kCUDA, 1);
    const Tensor x = ones({16}, {.device = mine});
    const Tensor pinned = cuda::empty_pinned({16});
    std::thread([&] {
      const Tensor y = x.to(kFloat64);
      Event event(1);
      event.record(Stream::current(1));
      event.synchronize();
      const Tensor other = cuda::empty_pinned({1 << 20});
    }).join();
    const bool right = sum_of(x) == 16.0f && cuda::emulated::is_used(1) && !cuda::emulated::is_used(0);
    std::_Exit(right ? 0 : 1);
  };
  EXPECT_EXIT(use_the_second(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::testing
