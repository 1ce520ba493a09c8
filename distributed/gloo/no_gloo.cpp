#include "lockstep/core/check.h"
#include "lockstep/distributed/gloo/gloo.h"

namespace lockstep::distributed::gloo {

bool is_available() {
  return false;
}

ProcessGroupPtr make_process_group(const StorePtr&, const ProcessGroupOptions&, const Options&) {
  LOCKSTEP_CHECK(false,
                 "[gloo] this build has no Gloo, so CPU jobs of several processes cannot run; install libgloo-dev and "
                 "configure with LOCKSTEP_GLOO=ON");
  return nullptr;
}

}  // namespace lockstep::distributed::gloo
