#include "bench/all_reduce_peers.h"

namespace lockstep::bench {

std::vector<Contestant> raw_gloo(int, int, const std::string&) {
  return {};
}

}  // namespace lockstep::bench
