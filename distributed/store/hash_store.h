#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/distributed/store/dictionary.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// A store within one process, for ranks that are threads.
class HashStore final : public Store {
 public:
  std::string describe() const override { return "HashStore"; }

 protected:
  void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override;
  std::string do_get(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) override;
  std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                             Milliseconds timeout) override;
  void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_delete_key(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_num_keys(Milliseconds timeout) override;

 private:
  void wait_locked(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys, Milliseconds timeout);

  std::mutex mutex_;
  std::condition_variable changed_;
  Dictionary dictionary_;
};

}  // namespace lockstep::distributed
