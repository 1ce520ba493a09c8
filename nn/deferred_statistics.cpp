#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::nn {
namespace {
thread_local DeferredStatistics* innermost = nullptr;
}

DeferredStatistics::DeferredStatistics() : previous_(innermost) {
  innermost = this;
}

DeferredStatistics::~DeferredStatistics() {
  innermost = previous_;
}

DeferredStatistics* DeferredStatistics::current() {
  return innermost;
}

}  // namespace lockstep::nn
