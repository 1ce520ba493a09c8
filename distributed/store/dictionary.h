#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::distributed {

/// The state that every store keeps, with the meaning of its operations; see Store. Not thread-safe.
class Dictionary {
 public:
  void set(const std::string& key, const std::string& value);
  /// Null if absent. Valid until the next change.
  const std::string* find(const std::string& key) const;
  std::int64_t add(const std::string& key, std::int64_t delta);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool erase(const std::string& key);
  /// The first of `keys` that is absent; null if there is none.
  const std::string* first_missing(const std::vector<std::string>& keys) const;
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  /// Memory of all keys and values, about.
  std::size_t bytes() const { return bytes_; }

 private:
  std::unordered_map<std::string, std::string> values_;
  /// What an entry takes beside its key and value.
  static constexpr std::size_t kEntryBytes = 64;
  std::size_t bytes_ = 0;
};

/// `value` as a counter plus `delta`. Throws StoreError if it is none or the sum overflows.
std::int64_t add_to_counter(const std::string& key, const std::string* value, std::int64_t delta);
/// "[TCPStore 127.0.0.1:29500] ..." for a wait that passed its deadline.
std::string timeout_message(const std::string& store, const std::string& key, std::int64_t timeout_ms);

}  // namespace lockstep::distributed
