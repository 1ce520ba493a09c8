#include "lockstep/distributed/store/dictionary.h"

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

void Dictionary::set(const std::string& key, const std::string& value) {
  auto [entry, added] = values_.try_emplace(key);
  if (added) bytes_ += kEntryBytes + key.size();
  bytes_ += value.size();
  bytes_ -= entry->second.size();
  entry->second = value;
}

const std::string* Dictionary::find(const std::string& key) const {
  const auto entry = values_.find(key);
  return entry == values_.end() ? nullptr : &entry->second;
}

std::int64_t Dictionary::add(const std::string& key, std::int64_t delta) {
  const std::int64_t sum = add_to_counter(key, find(key), delta);
  set(key, std::to_string(sum));
  return sum;
}

std::string Dictionary::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const std::string* value = find(key);
  if ((value ? *value : std::string()) == expected) {
    set(key, desired);
    return desired;
  }
  return value ? *value : std::string();
}

bool Dictionary::erase(const std::string& key) {
  const auto entry = values_.find(key);
  if (entry == values_.end()) return false;
  bytes_ -= kEntryBytes + entry->first.size() + entry->second.size();
  values_.erase(entry);
  return true;
}

const std::string* Dictionary::first_missing(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys)
    if (!values_.contains(key)) return &key;
  return nullptr;
}

std::int64_t add_to_counter(const std::string& key, const std::string* value, std::int64_t delta) {
  std::int64_t count = 0;
  if (value && !value->empty()) {
    const auto number = parse_number<std::int64_t>(*value);
    if (!number)
      throw StoreError(
          fmt::format("[Store] cannot add to '{}': its value of {} bytes is no counter", key, value->size()));
    count = *number;
  }
  std::int64_t sum = 0;
  if (__builtin_add_overflow(count, delta, &sum))
    throw StoreError(fmt::format("[Store] adding {} to '{}' ({}) overflows", delta, key, count));
  return sum;
}

std::string timeout_message(const std::string& store, const std::string& key, std::int64_t timeout_ms) {
  return fmt::format("[{}] key '{}' did not appear within {} ms; is the process that sets it running?", store, key,
                     timeout_ms);
}

}  // namespace lockstep::distributed
