// The float32 rate of one core when nothing but fused multiply-adds in registers is done, in GFLOP per second of
// processor time: the limit that run_train_throughput.py measures against. Prints one line of JSON.

#include <algorithm>
#include <cstdio>

#include "bench/train_rounds.h"
#include "lockstep/core/cpu/vec8.h"

namespace {

using lockstep::cpu::Vec8;

constexpr int kChains = 12;  // enough to hide the latency of an addition
constexpr long kSteps = 4'000'000;

[[gnu::noinline]] float work(float seed) {
  Vec8 sums[kChains];
  const Vec8 factor = lockstep::cpu::broadcast8(seed), term = lockstep::cpu::broadcast8(1.0f - seed);
  for (int i = 0; i < kChains; ++i) sums[i] = lockstep::cpu::broadcast8(static_cast<float>(i));
  for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + term;
  }
  float result = 0;
  for (const Vec8& sum : sums) result += lockstep::cpu::sum8(sum);
  return result;
}

}  // namespace

int main() {
  double best = 0;
  float kept = 0;
  for (int round = 0; round < 9; ++round) {
    const double start = train_rounds::cpu_seconds();
    kept += work(0.999f);
    const double seconds = train_rounds::cpu_seconds() - start;
    best = std::max(best, 2.0 * lockstep::cpu::kLanes * kChains * kSteps / seconds * 1e-9);
  }
  std::printf("{\"gflops\": %.1f, \"checksum\": %g}\n", best, static_cast<double>(kept));
}
