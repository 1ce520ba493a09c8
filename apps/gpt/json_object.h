#pragma once

// For .cpp files only.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::gpt {

/// An object of a file of JSON. All functions throw Error naming file and key for a value of another type.
class JsonObject {
 public:
  /// What `path` holds, with `who` ("[config]") in front of errors. See Note [JSON from outside].
  static JsonObject read(const std::string& path, const std::string& who);

  /// False for null too.
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  /// Throws Error if there is none.
  const nlohmann::json& at(const char* key) const;
  /// A whole number that is at least 1 and fits into 31 bits, so that products of two fit into 63.
  std::int64_t size(const char* key) const;
  std::int64_t size(const char* key, std::int64_t fallback) const { return has(key) ? size(key) : fallback; }
  double number(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  JsonObject object(const char* key) const;
  /// Throws Error unless the entry is absent or equals `computed`.
  void require(const char* key, const nlohmann::json& computed) const;

  const nlohmann::json& json() const { return json_; }
  /// "[config] 'config.json'", or "[config] 'config.json': "rope_scaling"" of an object in it.
  const std::string& where() const { return where_; }

 private:
  JsonObject(nlohmann::json json, std::string where);
  /// Throws Error saying what was expected.
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  nlohmann::json json_;
  std::string where_;
};

}  // namespace lockstep::gpt
