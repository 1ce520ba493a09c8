#pragma once

// Values recorded from PyTorch by scripts/record_golden.py, and the comparison with ours.

#include <functional>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::testing {

/// What a safetensors file holds.
struct RecordedFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};
/// Throws Error if the file is missing or malformed.
RecordedFile read_recorded(const std::string& path);
/// The folder with the recorded values.
std::string golden_folder();

/// The gradients that backward passes were recorded with, for a result like this; see scripts/golden_recorder.py.
Tensor golden_weights(const Tensor& like);

/// The tensors of tests/golden/NAME.safetensors, by "CASE|KEY".
class GoldenFile {
 public:
  /// Throws Error if the file is missing or malformed.
  explicit GoldenFile(const std::string& name);
  /// Reads a file once.
  static const GoldenFile& open(const std::string& name);

  /// Throws Error naming file and tensor if it was not recorded.
  const Tensor& get(const std::string& name) const;
  const Tensor& get(const std::string& test_case, const std::string& key) const { return get(test_case + "|" + key); }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Keys of a case.
  std::map<std::string, Tensor> tensors_of(const std::string& test_case) const;
  /// Names of the cases, sorted.
  std::vector<std::string> cases() const;

 private:
  std::string path_;
  std::map<std::string, Tensor> tensors_;
};

/// The inputs of a case, by name.
class GoldenInputs {
 public:
  std::map<std::string, Tensor> tensors;

  /// Throws Error if the case has no such input.
  const Tensor& operator[](const std::string& name) const;
  bool has(const std::string& name) const { return tensors.contains(name); }
};

/// One line a case: a recorded operation and how it is written here.
struct GoldenCase {
  const char* name;
  std::function<Tensor(const GoldenInputs&)> run;
  bool any_layout = true;  ///< also takes inputs with gaps and reversed dimensions

  friend std::ostream& operator<<(std::ostream& out, const GoldenCase& c) { return out << c.name; }
};

/// Fails unless the result, the gradients of the inputs and what inputs hold afterwards equal the recorded values: in
/// float64, in float32, and in float64 with inputs that are not contiguous.
void check_golden(const std::string& file, const GoldenCase& test_case);

/// Fails for each recorded case that `cases` lacks.
void expect_all_recorded_cases(const std::string& file, std::span<const GoldenCase> cases);

/// Elements within rtol of their own size or a tenth of rtol of the largest one's; rtol is 1e-5 for float32 values,
/// 1e-9 for float64. NaN equals NaN.
void expect_golden(const Tensor& actual, const Tensor& recorded, const std::string& what, double rtol = 0.0);

}  // namespace lockstep::testing
