#include "lockstep/core/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/cuda.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/pinned.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

using cuda::Event;
using cuda::Stream;
using cuda::StreamGuard;

class CudaStream : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  }
  const int device_ = test_device().index;
};

TEST_F(CudaStream, AGuardSendsWorkToItsStreamAndBack) {
  const Stream side = Stream::from_pool(device_);
  EXPECT_EQ(Stream::current(device_), Stream::default_of(device_));
  {
    const StreamGuard guard(side);
    EXPECT_EQ(Stream::current(device_), side);
    Tensor x = full({1000}, 3.0, {.device = test_device()});
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 3.0f));
  }
  EXPECT_EQ(Stream::current(device_), Stream::default_of(device_));
}

TEST_F(CudaStream, AProgramWaitsForTheDeviceAndSeesItsMemory) {
  const Stream side = Stream::create(device_);
  const std::size_t before = cuda::memory_allocated(device_);
  cuda::reset_peak_memory(device_);
  Event done(device_);
  {
    const StreamGuard guard(side);
    const Tensor x = full({1000, 1000}, 3.0, {.device = test_device()});
    EXPECT_GE(cuda::memory_allocated(device_), before + 4000000);
    x.contiguous();
    done.record(side);
  }
  cuda::synchronize(device_);
  EXPECT_TRUE(done.is_done());
  EXPECT_EQ(cuda::memory_allocated(device_), before);
  EXPECT_GE(cuda::max_memory_allocated(device_), before + 4000000);
  cuda::empty_cache();
  EXPECT_LT(cuda::memory_cached(device_), 4000000u);
  EXPECT_NE(error_of([] { cuda::synchronize(1000); }), "");
}

TEST_F(CudaStream, WorkThatWaitsForAnEventSeesWhatCameBefore) {
  const Stream first = Stream::from_pool(device_), second = Stream::from_pool(device_);
  Tensor x = zeros({1 << 20}, {.device = test_device()});
  Stream::default_of(device_).synchronize();
  Event done(device_);
  {
    const StreamGuard guard(first);
    for (int i = 1; i <= 20; ++i) fill_values(x, i);
    done.record(first);
  }
  second.wait(done);
  const StreamGuard guard(second);
  EXPECT_EQ(x.to_vector<float>().back(), 20.0f);
  EXPECT_TRUE(done.is_done());
}

TEST_F(CudaStream, EventsMeasureTime) {
  const Stream stream = Stream::from_pool(device_);
  const StreamGuard guard(stream);
  Event start(device_, true), end(device_, true);
  start.record(stream);
  Tensor x = full({1 << 16}, 1.0, {.device = test_device()});
  end.record(stream);
  end.synchronize();
  EXPECT_GE(end.elapsed_ms(start), 0.0);
}

TEST_F(CudaStream, CopiesRoundTripThroughEveryDtypeAndLayout) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool}) {
    SCOPED_TRACE(name(dtype));
    const Tensor host = make_input({3, 5, 7}, 4, dtype, 0.0, 9.0);
    const Tensor there = move_values(host, test_device());
    EXPECT_EQ(there.to_vector<double>(), host.to_vector<double>());
    const Tensor strided = make_strided(there);
    EXPECT_EQ(strided.to_vector<double>(), host.to_vector<double>());
    for (const DType other : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool}) {
      SCOPED_TRACE(name(other));
      EXPECT_EQ(cast_values(there, other).to_vector<double>(), cast_values(host, other).to_vector<double>());
    }
  }
}

TEST_F(CudaStream, PinnedMemoryIsCopiedInStreamOrder) {
  const Tensor source = cuda::empty_pinned({4096});
  EXPECT_TRUE(cuda::is_pinned(source));
  EXPECT_FALSE(cuda::is_pinned(empty({4})));
  fill_values(source, 5.0);
  const Stream stream = Stream::from_pool(device_);
  const StreamGuard guard(stream);
  const Tensor there = empty({4096}, {.device = test_device()});
  cuda::copy_async(source, there);
  const Tensor back = cuda::empty_pinned({4096});
  cuda::copy_async(there, back);
  stream.synchronize();
  EXPECT_EQ(back.to_vector<float>(), std::vector<float>(4096, 5.0f));
  EXPECT_NE(error_of([&] { cuda::copy_async(empty({4096}), there); }).find("not pinned"), std::string::npos);
}

TEST_F(CudaStream, PinnedMemoryMayBeWrittenOnceCopyValuesReturns) {
  const Tensor source = cuda::empty_pinned({1 << 16});
  fill_values(source, 1.0);
  const Tensor there = move_values(source, test_device());
  fill_values(source, 2.0);
  EXPECT_EQ(there.to_vector<float>(), std::vector<float>(1 << 16, 1.0f));
}

TEST_F(CudaStream, TwoDevicesCopyInOrder) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two CUDA devices";
  const Device other{kCUDA, 1 - device_};
  const Tensor x = full({1 << 16}, 3.0, {.device = test_device()});
  const Tensor y = move_values(x, other);
  fill_values(x, 4.0);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 16, 3.0f));
  copy_values(cast_values(y, kFloat64), x);
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1 << 16, 3.0f));
}

// A result that waits (Note [Pending values]) goes to the stream of its call, before an event that is recorded after
// it.
TEST_F(CudaStream, APendingResultComesBeforeALaterEvent) {
  const Stream first = Stream::from_pool(device_), second = Stream::from_pool(device_);
  const Tensor x = full({64, 8}, 1.0, {.device = test_device()}), weight = full({4, 8}, 2.0, {.device = test_device()});
  Stream::default_of(device_).synchronize();
  Event done(device_);
  Tensor result;
  {
    const StreamGuard guard(first);
    result = relu(linear(x, weight));
    EXPECT_TRUE(result.storage()->is_pending());
    done.record(first);
    EXPECT_FALSE(result.storage()->is_pending());
  }
  second.wait(done);
  const StreamGuard guard(second);
  EXPECT_EQ(result.to_vector<float>(), std::vector<float>(256, 16.0f));
}

}  // namespace
}  // namespace lockstep::testing
