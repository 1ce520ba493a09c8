#include "lockstep/distributed/store/prefix_store.h"

#include "lockstep/core/check.h"

namespace lockstep::distributed {

PrefixStore::PrefixStore(std::string prefix, StorePtr store)
    : prefix_(std::move(prefix) + "/"), store_(std::move(store)) {
  LOCKSTEP_CHECK(store_, "[PrefixStore] needs a store to stand before; found none");
  set_timeout(store_->timeout());
}

std::vector<std::string> PrefixStore::prefixed(std::vector<std::string> keys) const {
  for (std::string& key : keys) key.insert(0, prefix_);
  return keys;
}

}  // namespace lockstep::distributed
