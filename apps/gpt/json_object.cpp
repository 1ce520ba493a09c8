#include "apps/gpt/json_object.h"

#include <limits>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/json.h"
#include "lockstep/core/out_of_memory.h"

namespace lockstep::gpt {
namespace {

constexpr std::int64_t kMostSize = std::numeric_limits<std::int32_t>::max();

}  // namespace

JsonObject JsonObject::read(const std::string& path, const std::string& who) {
  const std::string where = fmt::format("{} '{}'", who, path);
  return with_memory_for(fmt::format("reading '{}'", path), [&]() -> JsonObject {
    return {parse_json(read_input_file(path, who, kJsonBytes), where), where};
  });
}

JsonObject::JsonObject(nlohmann::json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {
  LOCKSTEP_CHECK(json_.is_object(), "{} is {}; expected a JSON object", where_, describe_json(json_));
}

void JsonObject::refuse(const char* key, const std::string& expected) const {
  lockstep::detail::throw_error(
      fmt::format("{}: expected {} for \"{}\", found {}", where_, expected, key, describe_json(json_[key])));
}

const nlohmann::json& JsonObject::at(const char* key) const {
  LOCKSTEP_CHECK(has(key), "{} has no \"{}\"", where_, key);
  return json_[key];
}

std::int64_t JsonObject::size(const char* key) const {
  const nlohmann::json& value = at(key);
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
                    value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMostSize);
  if (!fits) refuse(key, fmt::format("a whole number from 1 to {}", kMostSize));
  return value.get<std::int64_t>();
}

double JsonObject::number(const char* key, double fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_number()) refuse(key, "a number");
  return at(key).get<double>();
}

bool JsonObject::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

std::string JsonObject::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_string()) refuse(key, "a string");
  return at(key).get<std::string>();
}

JsonObject JsonObject::object(const char* key) const {
  if (!at(key).is_object()) refuse(key, "an object");
  return {at(key), fmt::format("{}: \"{}\"", where_, key)};
}

void JsonObject::require(const char* key, const nlohmann::json& computed) const {
  LOCKSTEP_CHECK(!has(key) || json_[key] == computed, "{}: \"{}\" is {}; only {} is computed here", where_, key,
                 describe_json(json_[key]), describe_json(computed));
}

}  // namespace lockstep::gpt
