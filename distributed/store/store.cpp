#include "lockstep/distributed/store/store.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

// Far enough that no job waits for it, near enough that a clock reading plus it never overflows.
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);

Milliseconds clamp_timeout(Milliseconds timeout) {
  return std::clamp(timeout, Milliseconds(0), kLongest);
}

std::string checked_key(std::string_view key) {
  LOCKSTEP_CHECK(!key.empty() && key.size() <= Store::kMaxKeyBytes, "[Store] a key has {} bytes; expected 1 to {}",
                 key.size(), Store::kMaxKeyBytes);
  return std::string(key);
}

std::string checked_value(std::string_view value) {
  LOCKSTEP_CHECK(value.size() <= Store::kMaxValueBytes, "[Store] a value has {} bytes; at most {} are allowed",
                 value.size(), Store::kMaxValueBytes);
  return std::string(value);
}

void check_keys(const std::vector<std::string>& keys) {
  LOCKSTEP_CHECK(keys.size() <= Store::kMaxWaitKeys, "[Store] {} keys at once; at most {} are allowed", keys.size(),
                 Store::kMaxWaitKeys);
  std::size_t total = 0;
  for (const std::string& key : keys) total += checked_key(key).size();
  LOCKSTEP_CHECK(total <= Store::kMaxValueBytes, "[Store] {} bytes of keys at once; at most {} are allowed", total,
                 Store::kMaxValueBytes);
}

}  // namespace

void Store::set(std::string_view key, std::string_view value, Milliseconds timeout) {
  do_set(checked_key(key), checked_value(value), effective(timeout));
}

std::string Store::get(std::string_view key, Milliseconds timeout) {
  return do_get(checked_key(key), effective(timeout));
}

std::int64_t Store::add(std::string_view key, std::int64_t delta, Milliseconds timeout) {
  return do_add(checked_key(key), delta, effective(timeout));
}

std::string Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               Milliseconds timeout) {
  return do_compare_set(checked_key(key), checked_value(expected), checked_value(desired), effective(timeout));
}

void Store::wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  check_keys(keys);
  if (!keys.empty()) do_wait(keys, effective(timeout));
}

bool Store::check(const std::vector<std::string>& keys, Milliseconds timeout) {
  check_keys(keys);
  return keys.empty() || do_check(keys, effective(timeout));
}

bool Store::delete_key(std::string_view key, Milliseconds timeout) {
  return do_delete_key(checked_key(key), effective(timeout));
}

std::int64_t Store::num_keys(Milliseconds timeout) {
  return do_num_keys(effective(timeout));
}

Milliseconds Store::effective(Milliseconds timeout) const {
  return timeout == kStoreTimeout ? timeout_ : clamp_timeout(timeout);
}

void Store::set_timeout(Milliseconds timeout) {
  LOCKSTEP_CHECK(timeout.count() > 0, "[Store] the timeout is {} ms; expected a positive one", timeout.count());
  timeout_ = clamp_timeout(timeout);
}

}  // namespace lockstep::distributed
