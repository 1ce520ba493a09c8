#include "lockstep/core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "lockstep/core/last_error.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

template <typename T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

constexpr DType kAll[] = {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};

TEST(Factories, MakeWhatTheirNamesSay) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(zeros({2, 3}, {.dtype = dtype}).to_vector<double>(), std::vector<double>(6, 0.0));
    EXPECT_EQ(ones({2}, {.dtype = dtype}).to_vector<double>(), std::vector<double>(2, 1.0));
    EXPECT_EQ(zeros({2, 3}, {.dtype = dtype}).dtype(), dtype);
    EXPECT_EQ(ones_like(empty({3}, {.dtype = dtype})).dtype(), dtype);
  }
  EXPECT_EQ(full({2}, 2.5).to_vector<double>(), std::vector<double>({2.5, 2.5}));
  EXPECT_EQ(full({}, 7, {.dtype = kInt32}).item<std::int64_t>(), 7);
  EXPECT_EQ(scalar_tensor(3).dim(), 0);
  EXPECT_EQ(tensor<std::int64_t>({4, 5}).dtype(), kInt64);
  EXPECT_EQ(tensor(std::vector<bool>{true, false}).to_vector<std::int64_t>(), std::vector<std::int64_t>({1, 0}));
}

TEST(Factories, Arange) {
  EXPECT_EQ(arange(4).to_vector<std::int64_t>(), std::vector<std::int64_t>({0, 1, 2, 3}));
  EXPECT_EQ(arange(4).dtype(), kInt64);
  EXPECT_EQ(arange(1, 2, 0.25, {.dtype = kFloat32}).to_vector<double>(), std::vector<double>({1, 1.25, 1.5, 1.75}));
  EXPECT_EQ(arange(3, 0, -1).to_vector<double>(), std::vector<double>({3, 2, 1}));
  EXPECT_NE(error_of([] { arange(3, 0, 1); }).find("a step of 1 does not lead from 3 to 0"), std::string::npos);
  EXPECT_EQ(arange(0).numel(), 0);
  EXPECT_NE(error_of([] { arange(0, 1, 0); }).find("[arange]"), std::string::npos);
  EXPECT_NE(error_of([] { arange(0, std::numeric_limits<double>::infinity()); }).find("[arange]"), std::string::npos);
}

TEST(Factories, FromBlobBorrowsAndReleases) {
  float values[] = {1, 2, 3, 4};
  int released = 0;
  {
    Tensor view;
    {
      const Tensor x = from_blob(values, {2, 2}, {}, [&] { ++released; });
      x.data<float>()[3] = 9;
      view = rows(x, 1, 1);
    }
    EXPECT_EQ(released, 0);
    EXPECT_EQ(view.to_vector<double>(), std::vector<double>({3, 9}));
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(values[3], 9);
  EXPECT_NE(error_of([] { from_blob(nullptr, {2}); }).find("[from_blob] null data"), std::string::npos);
}

TEST(Factories, BadSizesAreErrors) {
  EXPECT_EQ(error_of([] { empty({2, -1}); }), "[empty] negative size in [2, -1]");
  EXPECT_NE(error_of([] { zeros({std::int64_t{1} << 62, 8}); }).find("too many elements"), std::string::npos);
}

TEST(TensorBasics, KnowItsShape) {
  const Tensor x = zeros({2, 3, 4}, {.dtype = kFloat64});
  EXPECT_EQ(x.dim(), 3);
  EXPECT_EQ(x.size(-1), 4);
  EXPECT_EQ(x.strides(), Shape({12, 4, 1}));
  EXPECT_EQ(x.nbytes(), 192u);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_FALSE(Tensor().defined());
  EXPECT_NE(error_of([&] { x.size(3); }).find("[size] dimension 3"), std::string::npos);
  EXPECT_NE(error_of([] { scalar_tensor(1).size(0); }).find("[size]"), std::string::npos);
}

TEST(TensorBasics, TheWrongTypeOfDataIsAnError) {
  EXPECT_EQ(error_of([] { zeros({1}).data<double>(); }),
            "a float32 tensor was accessed as float64; convert it with to()");
}

TEST(TensorBasics, ItemConverts) {
  EXPECT_EQ(full({1, 1}, 2.5).item(), 2.5);
  EXPECT_EQ(full({}, 2.5, {.dtype = kFloat16}).item<float>(), 2.5f);
  EXPECT_EQ(full({}, 2.5).item<std::int64_t>(), 2);
  EXPECT_TRUE(ones({}, {.dtype = kBool}).item<bool>());
  EXPECT_EQ(rows(arange(5), 3, 1).item<std::int64_t>(), 3);
  const std::int64_t large = (std::int64_t{1} << 62) + 1;
  EXPECT_EQ(tensor<std::int64_t>({large}).item<std::int64_t>(), large);
  EXPECT_EQ(error_of([] { zeros({2}).item(); }), "[item] expected a tensor with one element, found shape [2]");
}

TEST(TensorBasics, ItemRefusesWhatAnIntegerCannotHold) {
  for (const double value : {double(NAN), double(INFINITY), -1e20, 2147483648.0})
    EXPECT_NE(error_of([&] { scalar_tensor(value, {.dtype = kFloat64}).item<int>(); }).find("[item]"),
              std::string::npos)
        << value;
  EXPECT_EQ(scalar_tensor(2147483647.9, {.dtype = kFloat64}).item<int>(), 2147483647);
  EXPECT_EQ(scalar_tensor(-2147483648.9, {.dtype = kFloat64}).item<int>(), std::numeric_limits<int>::min());
  EXPECT_EQ(scalar_tensor(-0x1p63, {.dtype = kFloat64}).item<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_NE(error_of([] { scalar_tensor(0x1p63, {.dtype = kFloat64}).item<std::int64_t>(); }), "");
  EXPECT_EQ(scalar_tensor(0x1p63, {.dtype = kFloat64}).item<std::uint64_t>(), std::uint64_t{1} << 63);
  EXPECT_EQ(error_of([] { tensor<std::int64_t>({300}).item<unsigned char>(); }),
            "[item] 300 is out of the range of the integer type that was asked for, 0 to 255");
  EXPECT_NE(error_of([] { tensor<std::int64_t>({-1}).item<unsigned>(); }), "");
  EXPECT_EQ(scalar_tensor(NAN).item<bool>(), true);
}

TEST(LastError, IsThatOfAnExceptionWhichIsUnderWayAlone) {
  struct Witness {
    std::string& heard;
    ~Witness() { heard = last_error().message; }
  };
  std::string heard;
  try {
    const Witness witness{heard};
    zeros({-1});
  } catch (const Error& error) {
    EXPECT_EQ(heard, error.what());
  }
  EXPECT_EQ(last_error().message, "");
  try {  // a program's own exception after one of ours that was dealt with
    const Witness witness{heard};
    throw std::runtime_error("another");
  } catch (const std::exception&) {
    EXPECT_EQ(heard, "");
  }
}

TEST(TensorViews, AsStridedSharesMemoryAndStaysInside) {
  const Tensor x = arange(12);
  const Tensor t = x.as_strided({3, 4}, {1, 3}, 0);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.to_vector<std::int64_t>()[1], 3);
  EXPECT_EQ(t.storage(), x.storage());
  EXPECT_TRUE(x.as_strided({2, 6}, {6, 1}, 0).is_contiguous());
  EXPECT_TRUE(x.as_strided({1, 6}, {77, 1}, 0).is_contiguous());
  EXPECT_TRUE(x.as_strided({0, 5}, {9, 9}, 0).is_contiguous());
  const struct {
    Shape sizes, strides;
    std::int64_t offset;
  } bad[] = {
      {{13}, {1}, 0},
      {{12}, {1}, 1},
      {{2}, {12}, 0},
      {{1}, {1}, -1},
      {{2}, {-1}, 3},
      {{-2}, {1}, 0},
      {{2, 2}, {1}, 0},
      {{std::int64_t{1} << 40, std::int64_t{1} << 40}, {0, 0}, 0},
      {{2, 2}, {std::int64_t{1} << 62, std::int64_t{1} << 62}, 0},
      {{2, 3}, {std::int64_t{1} << 62, std::int64_t{1} << 62}, 0},
  };
  for (const auto& b : bad)
    EXPECT_NE(error_of([&] { x.as_strided(b.sizes, b.strides, b.offset); }).find("[as_strided]"), std::string::npos)
        << to_string(b.sizes);
}

TEST(TensorViews, RowsAndDetachShareMemory) {
  const Tensor x = make_input({4, 3});
  const Tensor r = rows(x, 1, 2);
  EXPECT_EQ(r.sizes(), Shape({2, 3}));
  EXPECT_EQ(r.data<double>(), x.data<double>() + 3);
  EXPECT_EQ(x.detach().data<double>(), x.data<double>());
  EXPECT_FALSE(x.detach().is_same(x));
  EXPECT_NE(error_of([&] { rows(x, 3, 2); }).find("[rows]"), std::string::npos);
}

TEST(Copy, EveryPairOfDtypesConverts) {
  const std::vector<double> values = {0, 1, 2, 100};
  for (const DType from : kAll)
    for (const DType to : kAll) {
      const Tensor source = cast_values(tensor(values), from);
      const Tensor target = cast_values(source, to);
      EXPECT_EQ(target.dtype(), to);
      const bool boolean = from == kBool || to == kBool;
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(target.to_vector<double>()[i], boolean ? (values[i] != 0) : values[i]) << name(from) << name(to);
    }
}

TEST(Copy, CastsRoundToNearestEvenAndOverflowToInfinity) {
  const Tensor x = tensor<double>({1.0 + 0x1p-11, 1.0 + 3 * 0x1p-11, 65519, 65520, -1e9, 0x1p-25});
  EXPECT_EQ(cast_values(x, kFloat16).to_vector<double>(),
            std::vector<double>({1.0, 1.0 + 4 * 0x1p-11, 65504, std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(), 0}));
  EXPECT_EQ(cast_values(tensor<float>({1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f}), kBFloat16).to_vector<double>(),
            std::vector<double>({1.0, 1.0 + 4 * 0x1p-8}));
  EXPECT_EQ(cast_values(tensor<double>({2.9, -2.9}), kInt64).to_vector<std::int64_t>(),
            std::vector<std::int64_t>({2, -2}));
  EXPECT_TRUE(cast_values(tensor<float>({std::nanf("")}), kBool).item<bool>());
}

TEST(Copy, LayoutsShapesAndDevices) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kUInt8}) {
    const Tensor x = cast_values(make_input({3, 4, 5}, 1, kFloat64, 0, 200), dtype);
    const Tensor strided = make_strided(x);
    EXPECT_FALSE(strided.is_contiguous());
    expect_close(strided, x, 0, 0);
    expect_close(copy_contiguous(strided), x, 0, 0);
    EXPECT_TRUE(as_contiguous(strided).is_contiguous());
    EXPECT_TRUE(as_contiguous(x).is_same(x));
    const Tensor other = move_values(strided, {kCPU, 1});
    EXPECT_EQ(other.device(), Device(kCPU, 1));
    expect_close(other, x, 0, 0);
    copy_values(strided, other);
    copy_values(x, strided);
  }
  const Tensor target = zeros({2, 3});
  copy_values(tensor<std::int64_t>({1, 2, 3}), target);
  EXPECT_EQ(target.to_vector<double>(), std::vector<double>({1, 2, 3, 1, 2, 3}));
  copy_values(scalar_tensor(5), target);
  EXPECT_EQ(target.to_vector<double>(), std::vector<double>(6, 5.0));
  copy_values(zeros({0, 3}), zeros({0, 3}));
  EXPECT_EQ(error_of([&] {
              copy_values(zeros({3, 3}), target);
            }),
            "[copy] shapes [3, 3] and [2, 3] do not broadcast: sizes 3 and 2 at dimension -2");
  EXPECT_EQ(error_of([&] {
              copy_values(zeros({4, 2, 3}), target);
            }),
            "[copy] values of shape [4, 2, 3] do not fit into shape [2, 3]");
}

TEST(Copy, LargeTensorsCopyTheSameOnAnyNumberOfBlocks) {
  const Tensor x = make_input({257, 301}, 1, kFloat32);
  expect_close(copy_contiguous(make_strided(x)), x, 0, 0);
  expect_close(cast_values(cast_values(make_strided(x), kFloat64), kFloat32), x, 0, 0);
  const Tensor filled = make_strided(x);
  fill_values(filled, 3);
  expect_close(filled, full({257, 301}, 3), 0, 0);
}

TEST(Print, ShowsShapeDtypeDeviceAndValues) {
  EXPECT_EQ(printed(Tensor()), "Tensor(undefined)");
  EXPECT_EQ(printed(tensor<float>({1, 2.5f})), "Tensor([2], float32, cpu:0) [1, 2.5]");
  EXPECT_EQ(printed(scalar_tensor(3, {.device = {kCPU, 1}})), "Tensor([], float32, cpu:1) 3");
  EXPECT_EQ(printed(zeros({2, 0})), "Tensor([2, 0], float32, cpu:0) []");
  EXPECT_EQ(printed(arange(4).as_strided({2, 2}, {1, 2}, 0)), "Tensor([2, 2], int64, cpu:0) [[0, 2], [1, 3]]");
  EXPECT_EQ(printed(tensor<float>({NAN, -NAN, -INFINITY})), "Tensor([3], float32, cpu:0) [nan, nan, -inf]");
  EXPECT_EQ(printed(arange(20)), "Tensor([20], int64, cpu:0) [0, 1, 2, 3, 4, 5, 6, 7, ...]");
  EXPECT_EQ(printed(tensor<std::int64_t>({1234567890})), "Tensor([1], int64, cpu:0) [1234567890]");
}

}  // namespace
}  // namespace lockstep
