#include "lockstep/core/copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

const std::vector<DType> kAll = {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};

class Shapes : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Copy, Shapes, ::testing::Values(Shape{}, Shape{7}, Shape{3, 4}, Shape{2, 3, 4}, Shape{0, 3}));

TEST_P(Shapes, CloneAndContiguousKeepValues) {
  for (DType dtype : kAll) {
    const Tensor x = make_input(GetParam(), 3, dtype, 0.0, 9.0);
    const Tensor strided = make_strided(x);
    for (const Tensor& copy : {x.clone(), strided.clone(), strided.contiguous()}) {
      EXPECT_TRUE(copy.is_contiguous());
      EXPECT_EQ(copy.dtype(), dtype);
      EXPECT_NE(copy.storage().get(), x.storage().get());
      EXPECT_EQ(copy.to_vector<double>(), x.to_vector<double>());
    }
    EXPECT_TRUE(x.contiguous().is_same(x));
  }
}

TEST_P(Shapes, CastsBetweenAllDtypes) {
  const Tensor whole = cast_values(make_input(GetParam(), 4, kFloat64, 0.0, 100.0), kInt64);
  for (DType from : kAll) {
    if (from == kBool) continue;
    const Tensor x = cast_values(whole, from);
    for (DType to : kAll) {
      const Tensor y = make_strided(x).to(to);
      EXPECT_EQ(y.dtype(), to);
      const std::vector<double> expected = whole.to_vector<double>(), actual = y.to_vector<double>();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(actual[i], to == kBool ? (expected[i] != 0.0 ? 1.0 : 0.0) : expected[i]) << name(from) << name(to);
    }
  }
}

TEST(Copy, SameDtypeOrDeviceIsTheTensorItself) {
  const Tensor x = make_leaf({3});
  EXPECT_TRUE(x.to(kFloat64).is_same(x));
  EXPECT_TRUE(x.to(Device(kCPU)).is_same(x));
}

TEST(Copy, MovesBetweenLogicalDevicesAndBack) {
  const Tensor x = make_leaf({2, 3});
  const Tensor y = x.to(Device(kCPU, 1));
  EXPECT_EQ(y.device(), Device(kCPU, 1));
  EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
  const Tensor seed = make_input({2, 3}, 9);
  y.backward(move_values(seed, Device(kCPU, 1)));
  EXPECT_EQ(x.grad().device(), Device(kCPU));
  EXPECT_EQ(x.grad().to_vector<double>(), seed.to_vector<double>());
}

TEST(Copy, CloneGradient) {
  gradcheck([](const std::vector<Tensor>& in) { return in[0].clone(); }, {make_leaf({2, 3})});
}

TEST(Copy, CastGradientReturnsToTheSourceDtype) {
  const Tensor x = make_leaf({4}, 1, kFloat32);
  x.to(kFloat64).backward(make_input({4}, 2));
  EXPECT_EQ(x.grad().dtype(), kFloat32);
  expect_close(x.grad(), cast_values(make_input({4}, 2), kFloat32));
  EXPECT_FALSE(x.to(kInt64).requires_grad());
}

TEST(Copy, InPlaceCopyBroadcastsAndCasts) {
  const Tensor target = make_strided(make_input({3, 4}, 1, kFloat32));
  const Tensor source = make_input({4}, 2, kFloat64);
  EXPECT_TRUE(target.copy_(source).is_same(target));
  for (std::int64_t i = 0; i < 3; ++i)
    expect_close(rows(target, i, 1).as_strided({4}, {target.strides()[1]}, target.offset() + i * target.strides()[0]),
                 cast_values(source, kFloat32));
}

TEST(Copy, InPlaceCopyOfOverlappingMemory) {
  const Tensor x = arange(std::int64_t{8});
  rows(x, 1, 7).copy_(rows(x, 0, 7));
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 0, 1, 2, 3, 4, 5, 6}));
}

TEST(Copy, InPlaceCopyGradients) {
  const Tensor old = make_leaf({3, 4}, 1), source = make_leaf({4}, 2);
  const auto function = [](const std::vector<Tensor>& in) {
    const Tensor target = in[0].clone();
    target.copy_(in[1]);
    return target;
  };
  gradcheck(function, {old, source});
  function({old, source}).backward(ones({3, 4}, {.dtype = kFloat64}));
  EXPECT_EQ(source.grad().to_vector<double>(), std::vector<double>(4, 3.0));
}

TEST(Copy, FillAndZero) {
  for (DType dtype : kAll) {
    const Tensor x = make_strided(make_input({2, 3}, 1, dtype));
    EXPECT_EQ(x.fill_(1.0).to_vector<double>(), std::vector<double>(6, 1.0));
    EXPECT_EQ(x.zero_().to_vector<double>(), std::vector<double>(6, 0.0));
  }
  const Tensor leaf = make_leaf({3});
  const Tensor y = leaf.clone();
  y.fill_(2.0);
  EXPECT_TRUE(y.requires_grad());
  y.backward(ones({3}, {.dtype = kFloat64}));
  EXPECT_EQ(leaf.grad().to_vector<double>(), std::vector<double>(3, 0.0));
}

struct Refusal {
  const char* what;
  void (*run)();
};

class Refused : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    Copy, Refused,
    ::testing::Values(Refusal{"[zero_] a leaf that requires gradients", [] { make_leaf({3}).zero_(); }},
                      Refusal{"[fill_] a leaf that requires gradients", [] { make_leaf({3}).fill_(1.0); }},
                      Refusal{"[copy_] a leaf that requires gradients", [] { make_leaf({3}).copy_(make_input({3})); }},
                      Refusal{"[copy_] a source of shape [3, 4]",
                              [] {
                                make_input({4}).copy_(make_input({3, 4}));
                              }},
                      Refusal{"[copy_] the tensor cannot be changed in place while recording: it shares its memory",
                              [] {
                                const Tensor x = make_input({4, 2});
                                x.detach().slice(0, 0, 2).copy_(make_leaf({2, 2}));
                              }},
                      Refusal{"[copy_] the target of shape [3, 4] repeats",
                              [] {
                                make_input({4}).as_strided({3, 4}, {0, 1}, 0).copy_(make_input({3, 4}));
                              }},
                      Refusal{"[fill_] the target of shape [3, 4] repeats",
                              [] {
                                make_input({4}).as_strided({3, 4}, {0, 1}, 0).fill_(1.0);
                              }},
                      Refusal{"[copy_] the source is undefined", [] { make_input({3}).copy_({}); }},
                      Refusal{"[clone] the tensor is undefined", [] { clone({}); }}));

TEST_P(Refused, SaysWhy) {
  const std::string message = error_of(GetParam().run);
  EXPECT_NE(message.find(GetParam().what), std::string::npos) << message;
}

TEST(Copy, LeavesMayBeChangedWhileNothingIsRecorded) {
  const Tensor leaf = make_leaf({3});
  NoGradGuard guard;
  leaf.zero_();
  EXPECT_EQ(leaf.to_vector<double>(), std::vector<double>(3, 0.0));
}

}  // namespace
}  // namespace lockstep
