#pragma once

// An operation on the test device against the same on the CPU.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::testing {

using TensorList = std::vector<Tensor>;

/// One line a case. Inputs are made on the CPU in float64; floating-point ones are cast to the dtype under test.
struct AgreementCase {
  std::string name;
  /// Fresh inputs: floating-point ones that are to have gradients require them (make_leaf()).
  std::function<TensorList()> inputs;
  /// The results that are compared, and whose weighted sum goes backward if any input requires gradients.
  std::function<TensorList(const TensorList&)> run;
  /// Multiplies the tolerance: for sums of many terms in another order.
  double slack = 1.0;
  /// Also with inputs that are not contiguous.
  bool any_layout = true;
  /// Half types are tested too.
  bool halves = true;

  friend std::ostream& operator<<(std::ostream& out, const AgreementCase& c) { return out << c.name; }
};

/// Fails unless results and gradients on test_device() equal the CPU's, relative to the largest magnitude: float64
/// within 1e-12, float32 within 1e-5, float16 within 2e-3 and bfloat16 within 1.6e-2 (two roundings), times `slack`.
/// Skips without the device.
void check_agreement(const AgreementCase& test_case);

}  // namespace lockstep::testing
