// PyTorch's own samples of every operation, run here and compared with what PyTorch gave.
//
// Files: tests/golden/samples, or the folder that LOCKSTEP_TEST_SAMPLES names; scripts/golden_samples.py says what they
// hold. Each sample must agree on the CPU, with the reference kernels, with inputs that are not contiguous and, where
// there is one, on the test device; or docs/pytorch_operations.md must say in its table that it does not, and why.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/autograd/engine.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/kernel_table.h"
#include "tests/samples/call.h"
#include "tests/samples/counts.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

struct Outcome {
  Status status = Status::agrees;
  std::string detail;
};

/// A row of the table of differences: calls that match the pattern have the status.
struct Row {
  std::string pattern;
  std::string status;
  bool used = false;  ///< or known not to be among the samples at hand
};

/// How a sample is run.
struct Mode {
  const char* name;
  bool reference = false;
  bool strided = false;
  std::optional<Device> device = {};
};

std::vector<Row> table_of_differences() {
  const std::string path = path_of_table();
  std::ifstream file(path);
  if (!file) throw Error(path + " is missing");
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t end = line.find("` |", 3), next = line.find(" |", end + 4);
    if (end == std::string::npos || next == std::string::npos) throw Error(path + ": not a row: " + line);
    rows.push_back({line.substr(3, end - 3), line.substr(end + 4, next - end - 4)});
    const std::string::size_type in_all = rows.back().status.find(" in all");
    if (in_all != std::string::npos)
      rows.back() = {rows.back().pattern, rows.back().status.substr(0, in_all), all_samples == nullptr};
  }
  return rows;
}

/// `*` stands for any text.
bool matches(std::string_view pattern, std::string_view text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t i = star; i <= text.size(); ++i)
    if (matches(rest, text.substr(i))) return true;
  return false;
}

/// "add(float32[2,3], 2, alpha=3) of extremes".
class Text {
 public:
  explicit Text(const RecordedFile& file) : file_(file) {}

  std::string call(const std::string& operation, const Json& sample) const {
    std::string arguments;
    for (const Json& value : sample.at("args")) arguments += (arguments.empty() ? "" : ", ") + argument(value);
    for (const auto& [name, value] : sample.at("kwargs").items())
      arguments += (arguments.empty() ? "" : ", ") + name + "=" + argument(value);
    return operation + "(" + arguments + ")" + (sample.at("kind") == "extreme" ? " of extremes" : "");
  }

 private:
  std::string argument(const Json& value) const {
    std::string text;
    if (value.is_array()) {
      for (const Json& entry : value) text += (text.empty() ? "" : ",") + argument(entry);
      return "[" + text + "]";
    }
    if (!value.is_object()) return value.dump();
    if (!value.contains("tensor"))
      return value.begin().value().is_string() ? value.begin().value().get<std::string>() : value.dump();
    const Tensor& tensor = file_.tensors.at(value.at("tensor"));
    for (const std::int64_t size : tensor.sizes()) text += (text.empty() ? "" : ",") + std::to_string(size);
    return std::string(name(tensor.dtype())) + "[" + text + "]";
  }

  const RecordedFile& file_;
};

/// The values at these strides; elements may share memory.
Tensor with_strides(const Tensor& values, const Shape& strides) {
  std::int64_t count = 1;
  for (int d = 0; d < strides.dim(); ++d) count += (values.sizes()[d] - 1) * strides[d];
  if (values.numel() == 0) count = 0;
  const Tensor tensor = empty({count}, options_of(values)).as_strided(values.sizes(), strides, 0);
  const std::size_t bytes = element_size(values.dtype());
  const char* from = static_cast<const char*>(values.raw_data());
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = values.dim() - 1; d >= 0; --d) {
      offset += rest % values.sizes()[d] * strides[d];
      rest /= values.sizes()[d];
    }
    std::memcpy(static_cast<char*>(tensor.raw_data()) + static_cast<std::size_t>(offset) * bytes,
                from + static_cast<std::size_t>(i) * bytes, bytes);
  }
  return tensor;
}

struct Tolerance {
  double relative;  ///< of an element's own size
  double absolute;  ///< of the largest element
};
Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return {1e-9, 1e-11};
    case kFloat32:
      return {1e-5, 2e-6};
    case kFloat16:
      return {4e-3, 2e-3};
    case kBFloat16:
      return {3e-2, 1.6e-2};
    default:
      return {0, 0};
  }
}

/// What is different, or nothing. A device adds in another order than PyTorch's CPU, and may be off by a little more.
std::string difference(const Tensor& actual, const Tensor& expected) {
  if (actual.dtype() != expected.dtype())
    return std::string(name(actual.dtype())) + " instead of " + std::string(name(expected.dtype()));
  if (actual.sizes() != expected.sizes())
    return to_string(actual.sizes()) + " instead of " + to_string(expected.sizes());
  const std::vector<double> a = actual.to_vector<double>(), e = expected.to_vector<double>();
  double largest = 0.0;
  for (const double value : e)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  auto [relative, absolute] = tolerance_of(expected.dtype());
  if (actual.device().is_cuda()) relative *= 4;
  const double tiny = expected.dtype() == kFloat64 ? 1e-307 : expected.dtype() == kFloat16 ? 1e-4 : 2e-38;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == e[i] || (std::isnan(a[i]) && std::isnan(e[i]))) continue;
    const double allowed = relative * std::abs(e[i]) + std::min(absolute * largest, 1e30) + tiny;
    if (std::isfinite(e[i]) && std::abs(a[i] - e[i]) <= allowed) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(a[i]) + " instead of " + std::to_string(e[i]);
  }
  return {};
}

/// One sample, run in one mode.
class SampleRun {
 public:
  SampleRun(const RecordedFile& file, const Json& sample, const Mode& mode)
      : file_(file), sample_(sample), mode_(mode) {}

  Outcome outcome(const Operation& operation) {
    const bool refuses = sample_.at("kind") == "error";
    try {
      Call call(sample_.at("args"), sample_.at("kwargs"), [this](const Json& entry) { return input(entry); });
      const Results results = operation.run(call);
      call.expect_all_used();
      if (refuses) return {Status::accepted, "PyTorch refuses this"};
      const std::string different = compare(results);
      return different.empty() ? Outcome{} : Outcome{Status::differs, different};
    } catch (const Error& error) {
      return refuses ? Outcome{} : Outcome{Status::refused, error.what()};
    } catch (const NotExpressible& reason) {
      return {refuses ? Status::not_expressible : Status::refused, reason.what};
    }
  }

 private:
  struct Leaf {
    Tensor tensor;
    std::string gradient;
  };

  Tensor input(const Json& entry) {
    const Tensor& values = file_.tensors.at(entry.at("tensor"));
    Tensor tensor = copy_contiguous(values);
    if (entry.contains("strides")) {
      tensor = with_strides(values, Shape(entry.at("strides").get<std::vector<std::int64_t>>()));
    } else if (mode_.strided) {
      tensor = make_strided(values);
    }
    if (mode_.device) {
      tensor = move_values(tensor, *mode_.device);
      moved_ = true;
    }
    if (entry.contains("grad")) {
      tensor.set_requires_grad(true);
      leaves_.push_back({tensor, entry.at("grad")});
    }
    return tensor;
  }

  std::string compare(const Results& results) {
    const Json& expected = sample_.at("out");
    if (results.size() != expected.size())
      return std::to_string(results.size()) + " results instead of " + std::to_string(expected.size());
    std::vector<Tensor> roots, gradients;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Json& entry = expected[i];
      if (!entry.is_object() || !entry.contains("tensor")) {
        const Json number = entry.is_object() ? entry.at("float") : entry;
        const double value = results[i].item<double>();
        const double wanted = number.is_string()    ? std::stod(number.get<std::string>())
                              : number.is_boolean() ? static_cast<double>(number.get<bool>())
                                                    : number.get<double>();
        if (value != wanted && !(std::isnan(value) && std::isnan(wanted)))
          return std::to_string(value) + " instead of " + std::to_string(wanted);
        continue;
      }
      const std::string different = difference(results[i], file_.tensors.at(entry.at("tensor")));
      if (!different.empty()) return "result " + std::to_string(i) + ": " + different;
      if (moved_ && results[i].device() != *mode_.device)
        return "result " + std::to_string(i) + " is on " + to_string(results[i].device());
      if (!results[i].requires_grad()) continue;
      roots.push_back(results[i]);
      gradients.push_back(golden_weights(results[i]));
    }
    if (!roots.empty()) backward(roots, gradients);
    for (const Leaf& leaf : leaves_) {
      const Tensor gradient = leaf.tensor.grad().defined() ? leaf.tensor.grad() : zeros_like(leaf.tensor);
      const std::string different = difference(gradient, file_.tensors.at(leaf.gradient));
      if (!different.empty()) return "gradient of " + to_string(leaf.tensor.sizes()) + ": " + different;
    }
    return {};
  }

  const RecordedFile& file_;
  const Json& sample_;
  const Mode& mode_;
  std::vector<Leaf> leaves_;
  bool moved_ = false;
};

Counts* const counts = static_cast<Counts*>(::testing::AddGlobalTestEnvironment(new Counts));

std::vector<Operation> all_operations() {
  std::vector<Operation> operations;
  for (const auto& table : {elementwise_calls(), reduction_calls(), layer_calls(), shape_calls(), loss_calls(),
                            rearranging_calls(), indexing_calls(), volume_calls()})
    operations.insert(operations.end(), table.begin(), table.end());
  return operations;
}

/// The dtype of a sample's first tensor; float32 where there is none.
DType dtype_of_sample(const RecordedFile& file, const Json& sample) {
  for (const char* part : {"args", "kwargs", "out"}) {
    if (!sample.contains(part)) continue;
    for (const Json& value : sample.at(part)) {
      const Json& first = value.is_array() && !value.empty() ? value[0] : value;
      if (first.is_object() && first.contains("tensor")) return file.tensors.at(first.at("tensor")).dtype();
    }
  }
  return kFloat32;
}

class PyTorchSamples : public ::testing::TestWithParam<Operation> {};

TEST_P(PyTorchSamples, Agree) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Operation& operation = GetParam();
  const RecordedFile file = read_recorded(samples_folder() + "/" + operation.name + ".safetensors");
  const Json samples = Json::parse(file.metadata.at("samples"));
  std::vector<Row> rows = table_of_differences();
  std::erase_if(rows, [&](const Row& row) { return !row.pattern.starts_with(operation.name + std::string("(")); });

  std::vector<Mode> modes = {{.name = "CPU"}, {.name = "reference kernels", .reference = true}};
  if (operation.any_layout) modes.push_back({.name = "not contiguous", .strided = true});
  const bool on_device = test_device().is_cuda();
  if (on_device)
    modes = {{.name = "device", .device = test_device()}};
  else
    modes.push_back({.name = "another device of the CPU", .device = Device(kCPU, 1)});
  for (const Json& sample : samples) {
    const bool must_fail = sample.at("kind") == "error";
    if (on_device && must_fail) continue;  // the checks are the CPU's, or the device has no way to refuse
    // There cuDNN decides which products with the zeros around an image are left out.
    const bool transposed = std::string(operation.name).find("conv_transpose") != std::string::npos;
    if (on_device && transposed && !cuda::device_name(0).starts_with("emulated") && sample.at("kind") == "extreme")
      continue;
    const std::string text = Text(file).call(operation.name, sample);
    Outcome outcome;
    const char* where = "";
    for (const Mode& mode : modes) {
      set_reference_kernels(mode.reference);
      outcome = SampleRun(file, sample, mode).outcome(operation);
      set_reference_kernels(false);
      where = mode.name;
      if (outcome.status != Status::agrees) break;
    }
    counts->add(sample.at("kind"), dtype_of_sample(file, sample), outcome.status);
    bool listed = outcome.status == Status::agrees || outcome.status == Status::not_expressible;
    for (Row& row : rows) {
      if (!matches(row.pattern, text)) continue;
      const bool same = row.status == kStatusNames[static_cast<int>(outcome.status)];
      row.used = row.used || same;
      listed = listed || same;
      EXPECT_TRUE(outcome.status != Status::agrees || row.status == "differs" || must_fail)
          << text << " agrees now: take `" << row.pattern << "` out of docs/pytorch_operations.md, or narrow it";
    }
    EXPECT_TRUE(listed) << text << " is " << kStatusNames[static_cast<int>(outcome.status)] << " (" << where
                        << "): " << outcome.detail;
  }
  for (const Row& row : rows)
    EXPECT_TRUE(row.used || on_device) << "`" << row.pattern << "` in docs/pytorch_operations.md describes no sample";
}

std::string test_name(const ::testing::TestParamInfo<Operation>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, PyTorchSamples, ::testing::ValuesIn(all_operations()), test_name);

TEST(PyTorchSampleFiles, AreTestedEach) {
  std::set<std::string> tested;
  for (const Operation& operation : all_operations())
    EXPECT_TRUE(tested.insert(operation.name).second) << operation.name;
  std::set<std::string> recorded;
  for (const auto& entry : std::filesystem::directory_iterator(samples_folder()))
    recorded.insert(entry.path().stem().string());
  EXPECT_EQ(recorded, tested);
  for (const Row& row : table_of_differences())
    EXPECT_TRUE(tested.contains(row.pattern.substr(0, row.pattern.find('(')))) << row.pattern;
}

}  // namespace
}  // namespace lockstep::testing
