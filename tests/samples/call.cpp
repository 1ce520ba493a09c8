#include "tests/samples/call.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep::testing {
namespace {

[[noreturn]] void not_expressible(const char* name, const char* expected) {
  throw NotExpressible{"argument " + std::string(name) + " is not " + expected};
}

double real_of(const nlohmann::json& value, const char* name) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (!value.is_object() || !value.contains("float")) not_expressible(name, "a number");
  const std::string text = value.at("float");
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return (text == "-inf" ? -1 : 1) * std::numeric_limits<double>::infinity();
}

std::int64_t integer_of(const nlohmann::json& value, const char* name) {
  if (!value.is_number_integer()) not_expressible(name, "an integer");
  return value.get<std::int64_t>();
}

}  // namespace

Call::Call(const Json& args, const Json& kwargs, std::function<Tensor(const Json&)> tensor_of)
    : args_(args), kwargs_(kwargs), tensor_of_(std::move(tensor_of)) {}
Call::~Call() = default;

const Call::Json* Call::find(int position, const char* name) const {
  const Json* value = nullptr;
  if (position >= 0 && position < static_cast<int>(args_.size()))
    value = &args_[static_cast<std::size_t>(position)];
  else if (kwargs_.contains(name))
    value = &kwargs_.at(name);
  return value && !value->is_null() ? value : nullptr;
}

const Call::Json& Call::use(int position, const char* name) {
  const Json* value = find(position, name);
  if (!value) throw NotExpressible{"argument " + std::string(name) + " is missing"};
  used_.insert(value);
  return *value;
}

int Call::positions() const {
  return static_cast<int>(args_.size());
}

bool Call::given(int position, const char* name) const {
  return find(position, name) != nullptr;
}

bool Call::is_tensor(int position, const char* name) const {
  const Json* value = find(position, name);
  return value && value->is_object() && value->contains("tensor");
}

bool Call::is_list(int position, const char* name) const {
  const Json* value = find(position, name);
  return value && value->is_array();
}

Tensor Call::tensor(int position, const char* name) {
  const Json& value = use(position, name);
  if (!is_tensor(position, name)) not_expressible(name, "a tensor");
  return tensor_of_(value);
}

Tensor Call::tensor_or_none(int position, const char* name) {
  return given(position, name) ? tensor(position, name) : Tensor();
}

std::vector<Tensor> Call::tensors(int position, const char* name) {
  const Json& value = use(position, name);
  if (!value.is_array()) not_expressible(name, "a list");
  std::vector<Tensor> result;
  for (const Json& entry : value) {
    if (!entry.is_object() || !entry.contains("tensor")) not_expressible(name, "a list of tensors");
    result.push_back(tensor_of_(entry));
  }
  return result;
}

Scalar Call::number(int position, const char* name) {
  const Json& value = use(position, name);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return real_of(value, name);
}

std::optional<double> Call::real_or_none(int position, const char* name) {
  if (!given(position, name)) return std::nullopt;
  return real_of(use(position, name), name);
}

double Call::real(int position, const char* name, double otherwise) {
  return real_or_none(position, name).value_or(otherwise);
}

std::int64_t Call::integer(int position, const char* name) {
  return integer_of(use(position, name), name);
}

std::optional<std::int64_t> Call::integer_or_none(int position, const char* name) {
  if (!given(position, name)) return std::nullopt;
  return integer(position, name);
}

std::int64_t Call::integer(int position, const char* name, std::int64_t otherwise) {
  return integer_or_none(position, name).value_or(otherwise);
}

bool Call::flag(int position, const char* name, bool otherwise) {
  if (!given(position, name)) return otherwise;
  const Json& value = use(position, name);
  if (value.is_number_integer()) return value.get<int>() != 0;
  if (!value.is_boolean()) not_expressible(name, "true or false");
  return value.get<bool>();
}

std::string Call::text(int position, const char* name, const char* otherwise) {
  if (!given(position, name)) return otherwise;
  const Json& value = use(position, name);
  if (!value.is_string()) not_expressible(name, "a word");
  return value.get<std::string>();
}

std::optional<DType> Call::dtype(int position, const char* name) {
  if (!given(position, name)) return std::nullopt;
  const Json& value = use(position, name);
  if (!value.is_object() || !value.contains("dtype")) not_expressible(name, "a dtype");
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool})
    if (value.at("dtype").get<std::string>() == lockstep::name(dtype)) return dtype;
  not_expressible(name, "a dtype that exists here");
}

Shape Call::shape(int position, const char* name) {
  const Json& value = use(position, name);
  if (!value.is_array()) return Shape{integer_of(value, name)};
  std::vector<std::int64_t> values;
  for (const Json& entry : value) values.push_back(integer_of(entry, name));
  return Shape(values);
}

Shape Call::shape_or_empty(int position, const char* name) {
  return given(position, name) ? shape(position, name) : Shape();
}

Size2d Call::size2d(int position, const char* name, Size2d otherwise) {
  if (!given(position, name)) return otherwise;
  const Shape sizes = shape(position, name);
  if (sizes.dim() == 0) return otherwise;
  if (sizes.dim() == 1) return sizes[0];
  if (sizes.dim() != 2) not_expressible(name, "one number or two");
  return {sizes[0], sizes[1]};
}

const Call::Json& Call::json(int position, const char* name) {
  return use(position, name);
}

void Call::expect_all_used() const {
  const auto check = [&](const Json& value, const std::string& what) {
    const bool says_nothing = value.is_null() || (value.is_boolean() && !value.get<bool>());
    if (!says_nothing && !used_.contains(&value)) throw NotExpressible{"there is no argument " + what};
  };
  for (std::size_t i = 0; i < args_.size(); ++i) check(args_[i], std::to_string(i));
  for (const auto& [name, value] : kwargs_.items()) check(value, name);
}

}  // namespace lockstep::testing
