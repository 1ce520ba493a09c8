#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::nn {
namespace {
thread_local DeferredStatistics* innermost = nullptr;
thread_local bool kept = false;
}  // namespace

DeferredStatistics::DeferredStatistics() : previous_(innermost) {
  innermost = this;
}

DeferredStatistics::~DeferredStatistics() {
  innermost = previous_;
}

DeferredStatistics* DeferredStatistics::current() {
  return innermost;
}

StatisticsKept::StatisticsKept() : before_(kept) {
  kept = true;
}

StatisticsKept::~StatisticsKept() {
  kept = before_;
}

bool StatisticsKept::active() {
  return kept;
}

}  // namespace lockstep::nn
