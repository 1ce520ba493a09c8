#pragma once

// Comparing against values recorded from PyTorch.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/factories.h"
#include "core/tensor.h"

namespace lockstep::testing {

using Records = std::map<std::string, std::vector<double>>;

/// sin(0.7 * i + phase) * scale + shift in float64: what the recording scripts use as inputs.
inline Tensor wave(const Shape& sizes, double phase, double scale = 1.0, double shift = 0.0) {
  Tensor values = empty(sizes, {.dtype = kFloat64});
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data<double>()[i] = std::sin(0.7 * static_cast<double>(i) + phase) * scale + shift;
  return values;
}

inline Tensor wave_leaf(const Shape& sizes, double phase, double scale = 1.0) {
  Tensor values = wave(sizes, phase, scale);
  values.set_requires_grad(true);
  return values;
}

/// Fails unless `actual`, times `scale`, holds the recorded values in row-major order.
inline void expect_recorded(const Tensor& actual, const Records& records, const std::string& name, double scale = 1.0,
                            double tolerance = 1e-10) {
  const auto record = records.find(name);
  ASSERT_NE(record, records.end()) << "nothing is recorded as " << name;
  ASSERT_TRUE(actual.defined()) << name;
  const std::vector<double> values = actual.to_vector<double>();
  ASSERT_EQ(values.size(), record->second.size()) << name;
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i] * scale, record->second[i], tolerance) << name << ", element " << i;
}

/// Checks a result, and its gradients under the recorded upstream gradient, wave(9). `grad_scale` corrects for inputs
/// that the script scaled inside of the function.
inline void expect_recorded_op(const Tensor& result, const std::vector<Tensor>& inputs, const Records& records,
                               const std::string& name, double grad_scale = 1.0) {
  expect_recorded(result, records, name);
  result.backward(wave(result.sizes(), 9.0));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    expect_recorded(inputs[i].grad(), records, name + ".grad" + std::to_string(i), grad_scale);
}

}  // namespace lockstep::testing
