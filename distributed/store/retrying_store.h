#pragma once

#include <thread>
#include <type_traits>

#include "lockstep/core/deadline.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Another store whose connections may break: a request that meets with a broken one is made again until its time is
/// up. The store may then have carried it out twice, so add() counts at least once.
class RetryingStore final : public Store {
 public:
  explicit RetryingStore(StorePtr store) : store_(std::move(store)) { set_timeout(store_->timeout()); }

  std::string describe() const override { return store_->describe(); }

 protected:
  void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override {
    retry(timeout, [&](Milliseconds left) { store_->set(key, value, left); });
  }
  std::string do_get(const std::string& key, Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->get(key, left); });
  }
  std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->add(key, delta, left); });
  }
  std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                             Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->compare_set(key, expected, desired, left); });
  }
  void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override {
    retry(timeout, [&](Milliseconds left) { store_->wait(keys, left); });
  }
  bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->check(keys, left); });
  }
  bool do_delete_key(const std::string& key, Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->delete_key(key, left); });
  }
  std::int64_t do_num_keys(Milliseconds timeout) override {
    return retry(timeout, [&](Milliseconds left) { return store_->num_keys(left); });
  }

 private:
  template <typename Request>
  static std::invoke_result_t<Request, Milliseconds> retry(Milliseconds timeout, Request request) {
    constexpr Milliseconds kPause{50};
    const Deadline deadline = deadline_in(timeout);
    for (;;) {
      try {
        return request(time_left(deadline));
      } catch (const ConnectionError&) {
        if (has_passed(deadline - kPause)) throw;
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  StorePtr store_;
};

}  // namespace lockstep::distributed
