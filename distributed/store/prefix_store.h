#pragma once

#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Another store, with `prefix` and a slash before every key: keeps the users of one store apart.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, StorePtr store);

  std::string describe() const override { return store_->describe(); }

 protected:
  void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override {
    store_->set(prefix_ + key, value, timeout);
  }
  std::string do_get(const std::string& key, Milliseconds timeout) override {
    return store_->get(prefix_ + key, timeout);
  }
  std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) override {
    return store_->add(prefix_ + key, delta, timeout);
  }
  std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                             Milliseconds timeout) override {
    return store_->compare_set(prefix_ + key, expected, desired, timeout);
  }
  void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override {
    store_->wait(prefixed(keys), timeout);
  }
  bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) override {
    return store_->check(prefixed(keys), timeout);
  }
  bool do_delete_key(const std::string& key, Milliseconds timeout) override {
    return store_->delete_key(prefix_ + key, timeout);
  }
  std::int64_t do_num_keys(Milliseconds timeout) override { return store_->num_keys(timeout); }

 private:
  std::vector<std::string> prefixed(std::vector<std::string> keys) const;

  std::string prefix_;
  StorePtr store_;
};

}  // namespace lockstep::distributed
