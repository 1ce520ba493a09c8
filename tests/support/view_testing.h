#pragma once

// What tests of the view operations share.

#include <functional>
#include <ostream>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {

/// One line a case: an operation on the tensor 0, 1, 2 ... of shape `sizes`.
struct ViewCase {
  const char* name;
  Shape sizes;
  std::function<Tensor(const Tensor&)> run;
  Shape out_sizes;
  std::vector<double> out;
  bool shares = true;  ///< the result shares x's storage, for a contiguous x

  friend std::ostream& operator<<(std::ostream& out, const ViewCase& c) { return out << c.name; }
};

/// Values and sharing of a case, values in every dtype, and what every operation is put through (check_op()).
inline void check_view_case(const ViewCase& c) {
  const Tensor x = arange(static_cast<double>(0), static_cast<double>(c.sizes.numel()), 1.0, {.dtype = kFloat64})
                       .as_strided(c.sizes, contiguous_strides(c.sizes), 0);
  const Tensor result = c.run(x);
  ASSERT_EQ(to_string(result.sizes()), to_string(c.out_sizes));
  EXPECT_EQ(result.to_vector<double>(), c.out);
  if (c.shares) {
    EXPECT_EQ(result.storage(), x.storage());
  }
  expect_close(c.run(make_strided(x)), result, 0, 0);
  for (DType dtype : {kFloat32, kFloat16, kBFloat16, kInt64, kInt32, kUInt8}) {
    const Tensor cast = c.run(cast_values(x, dtype));
    EXPECT_EQ(cast.dtype(), dtype);
    expect_close(cast_values(cast, kFloat64), result, 0, 0);
  }
  check_op({.name = c.name,
            .inputs = [&] { return TensorList{make_leaf(c.sizes)}; },
            .run = [&](const TensorList& in) { return TensorList{c.run(in[0])}; }});
}

}  // namespace lockstep::testing
