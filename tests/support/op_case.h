#pragma once

// What every operation is put through, one line a case.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::testing {

using TensorList = std::vector<Tensor>;

/// One line a case. Inputs are made on the CPU in float64; floating-point ones are cast to the dtype under test.
struct OpCase {
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
  /// No result depends on the inputs' values, and so none has a backward pass.
  bool constant = false;
  /// What run() must give, by plain loops over the same inputs in float64 (check_op() alone).
  std::function<TensorList(const TensorList&)> expected = {};

  friend std::ostream& operator<<(std::ostream& out, const OpCase& c) { return out << c.name; }
};

// Tolerances are relative to the largest magnitude of a tensor: float64 within 1e-12, float32 within 1e-5, float16
// within 2e-3 and bfloat16 within 1.6e-2 (two roundings), times `slack`.

/// On the CPU. Fails unless
/// - results equal expected(), have the inputs' dtype, and are the same bits for inputs that are not contiguous;
/// - some result has a backward pass if any input requires gradients;
/// - gradients equal those of float64 for the same inputs, and central differences, which are taken of each element or,
/// where there are more than 300, of some;
/// - the reference kernels give the same;
/// - results and gradients in float32 are the same bits on 1 and 3 threads.
void check_op(const OpCase& test_case);
/// The last of these alone, for sizes that are cut into blocks.
void check_threads(const OpCase& test_case);

/// Fails unless results and gradients on test_device() equal the CPU's. Skips without the device.
void check_on_device(const OpCase& test_case);

}  // namespace lockstep::testing
