#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/core/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {

namespace {

DType dtype_named(const std::string& name) {
  if (name == "F32") return kFloat32;
  if (name == "F64") return kFloat64;
  if (name == "F16") return kFloat16;
  if (name == "BF16") return kBFloat16;
  if (name == "I64") return kInt64;
  if (name == "I32") return kInt32;
  if (name == "U8") return kUInt8;
  if (name == "BOOL") return kBool;
  throw Error("golden file: unknown dtype " + name);
}

enum class Mode { float64, float32, strided };

Tensor prepare(const Tensor& recorded, bool differentiable, Mode mode) {
  const DType dtype = !recorded.is_floating_point() ? recorded.dtype() : mode == Mode::float32 ? kFloat32 : kFloat64;
  Tensor input = cast_values(recorded, dtype);
  if (input.is_same(recorded)) input = copy_contiguous(recorded);
  input = move_values(input, test_device());
  if (differentiable && mode == Mode::strided) input = make_strided(input);
  if (differentiable) input.set_requires_grad(true);
  return input;
}

void check(const GoldenFile& file, const GoldenCase& test_case, Mode mode) {
  const std::map<std::string, Tensor> recorded = file.tensors_of(test_case.name);
  GoldenInputs inputs;
  for (const auto& [key, value] : recorded)
    if (key != "out" && key.find('.') == std::string::npos)
      inputs.tensors[key] = prepare(value, recorded.contains("grad." + key), mode);
  const Tensor out = test_case.run(inputs);
  expect_golden(out, file.get(test_case.name, "out"), "out");
  if (::testing::Test::HasFatalFailure()) return;
  const bool any_gradient =
      std::any_of(recorded.begin(), recorded.end(), [](const auto& entry) { return entry.first.starts_with("grad."); });
  if (any_gradient) out.backward(golden_weights(out));
  for (const auto& [key, value] : recorded) {
    if (key.starts_with("grad.")) expect_golden(inputs[key.substr(5)].grad(), value, key);
    if (key.starts_with("after.")) expect_golden(inputs[key.substr(6)], value, key);
  }
}

}  // namespace

Tensor golden_weights(const Tensor& like) {
  Tensor weights = empty(like.sizes(), {.dtype = kFloat64});
  for (std::int64_t i = 0; i < weights.numel(); ++i)
    weights.data<double>()[i] = static_cast<double>((37 * i) % 101 - 50) / 64.0;
  return move_values(cast_values(weights, like.dtype()), like.device());
}

RecordedFile read_recorded(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error(path + " is missing; record it with scripts/record_golden.py");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::uint64_t length = 0;
  if (bytes.size() >= 8) std::memcpy(&length, bytes.data(), 8);
  if (bytes.size() < 8 || length > bytes.size() - 8) throw Error(path + ": the header is cut off");
  const char* data = bytes.data() + 8 + length;
  const std::size_t size = bytes.size() - 8 - length;
  RecordedFile file;
  const auto header = nlohmann::json::parse(bytes.data() + 8, data);
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    const Shape sizes(entry.at("shape").get<std::vector<std::int64_t>>());
    Tensor tensor = empty(sizes, {.dtype = dtype_named(entry.at("dtype"))});
    const std::size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    if (begin > end || end > size || end - begin != tensor.nbytes()) throw Error(path + ": bad offsets of " + key);
    if (begin != end) std::memcpy(tensor.raw_data(), data + begin, end - begin);
    file.tensors[key] = tensor;
  }
  return file;
}

std::string golden_folder() {
  const char* other = std::getenv("LOCKSTEP_TEST_SOURCE_DIR");  // tests that were carried to another machine
  return std::string(other ? other : LOCKSTEP_SOURCE_DIR) + "/tests/golden";
}

GoldenFile::GoldenFile(const std::string& name)
    : path_(golden_folder() + "/" + name + ".safetensors"), tensors_(read_recorded(path_).tensors) {}

const GoldenFile& GoldenFile::open(const std::string& name) {
  static std::map<std::string, GoldenFile> files;
  return files.try_emplace(name, name).first->second;
}

const Tensor& GoldenFile::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error(path_ + " holds no tensor " + name);
  return found->second;
}

std::map<std::string, Tensor> GoldenFile::tensors_of(const std::string& test_case) const {
  std::map<std::string, Tensor> result;
  for (const auto& [name, value] : tensors_)
    if (name.starts_with(test_case + "|")) result[name.substr(test_case.size() + 1)] = value;
  return result;
}

std::vector<std::string> GoldenFile::cases() const {
  std::set<std::string> names;
  for (const auto& [name, value] : tensors_)
    if (name.find('|') != std::string::npos) names.insert(name.substr(0, name.find('|')));
  return {names.begin(), names.end()};
}

const Tensor& GoldenInputs::operator[](const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw Error("the recorded case has no input " + name);
  return found->second;
}

void check_golden(const std::string& file, const GoldenCase& test_case) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const GoldenFile& golden = GoldenFile::open(file);
  for (const auto& [mode, name] : {std::pair(Mode::float64, "float64"), std::pair(Mode::float32, "float32"),
                                   std::pair(Mode::strided, "float64, not contiguous")}) {
    if (mode == Mode::strided && !test_case.any_layout) continue;
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(check(golden, test_case, mode));
  }
}

void expect_all_recorded_cases(const std::string& file, std::span<const GoldenCase> cases) {
  std::set<std::string> tested;
  for (const GoldenCase& test_case : cases)
    EXPECT_TRUE(tested.insert(test_case.name).second) << test_case.name << " is listed twice";
  const std::vector<std::string> recorded = GoldenFile::open(file).cases();
  EXPECT_FALSE(recorded.empty());
  for (const std::string& name : recorded)
    EXPECT_TRUE(tested.contains(name)) << name << " was recorded but is not tested";
}

void expect_golden(const Tensor& actual, const Tensor& recorded, const std::string& what, double rtol) {
  ASSERT_TRUE(actual.defined()) << what << " is undefined";
  ASSERT_EQ(to_string(actual.sizes()), to_string(recorded.sizes())) << what;
  ASSERT_EQ(actual.is_floating_point(), recorded.is_floating_point()) << what;
  if (!actual.is_floating_point()) {
    ASSERT_EQ(name(actual.dtype()), name(recorded.dtype())) << what;
  }
  if (rtol == 0.0) rtol = actual.dtype() == kFloat64 ? 1e-9 : 1e-5;
  double largest = 0.0;
  for (double value : recorded.to_vector<double>())
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  SCOPED_TRACE(what);
  const double smallest = actual.dtype() == kFloat64 ? 0.0 : 1e-37;  // what float32 can hold
  ASSERT_NO_FATAL_FAILURE(expect_close(actual, recorded, rtol, std::max(0.1 * rtol * largest, smallest)));
}

}  // namespace lockstep::testing
