#include "lockstep/distributed/store/hash_store.h"

#include "lockstep/core/deadline.h"

namespace lockstep::distributed {

void HashStore::do_set(const std::string& key, const std::string& value, Milliseconds) {
  const std::lock_guard lock(mutex_);
  dictionary_.set(key, value);
  changed_.notify_all();
}

std::string HashStore::do_get(const std::string& key, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_locked(lock, {key}, timeout);
  return *dictionary_.find(key);
}

std::int64_t HashStore::do_add(const std::string& key, std::int64_t delta, Milliseconds) {
  const std::lock_guard lock(mutex_);
  const std::int64_t sum = dictionary_.add(key, delta);
  changed_.notify_all();
  return sum;
}

std::string HashStore::do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                      Milliseconds) {
  const std::lock_guard lock(mutex_);
  std::string value = dictionary_.compare_set(key, expected, desired);
  changed_.notify_all();
  return value;
}

void HashStore::do_wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_locked(lock, keys, timeout);
}

bool HashStore::do_check(const std::vector<std::string>& keys, Milliseconds) {
  const std::lock_guard lock(mutex_);
  return !dictionary_.first_missing(keys);
}

bool HashStore::do_delete_key(const std::string& key, Milliseconds) {
  const std::lock_guard lock(mutex_);
  return dictionary_.erase(key);
}

std::int64_t HashStore::do_num_keys(Milliseconds) {
  const std::lock_guard lock(mutex_);
  return dictionary_.size();
}

void HashStore::wait_locked(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                            Milliseconds timeout) {
  // wait_until on the steady clock: std::condition_variable::wait_for measures by it as well.
  const Deadline deadline = deadline_in(timeout);
  const bool complete = changed_.wait_until(lock, deadline, [&] { return !dictionary_.first_missing(keys); });
  if (!complete) throw TimeoutError(timeout_message(describe(), *dictionary_.first_missing(keys), timeout.count()));
}

}  // namespace lockstep::distributed
