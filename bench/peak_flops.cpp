// The float32 rate of one core when nothing but fused multiply-adds in registers is done, with the instruction set in
// use, in GFLOP per second of this thread's processor time: the limit that run_train_throughput.py measures against. (A
// BLAS library that is linked may have threads of its own that spin for a while after they start.) Prints one line of
// JSON.

#include <algorithm>
#include <cstdio>

#include "bench/peak.h"
#include "bench/turns.h"

int main() {
  const auto set = lockstep::cpu::instruction_set();
  double best = 0;
  float kept = 0;
  for (int round = 0; round < 9; ++round) {
    const double start = turns::now(true);
    const double flops = peak::work(set, 4'000'000, kept);
    best = std::max(best, flops / (turns::now(true) - start) * 1e-9);
  }
  std::printf("{\"gflops\": %.1f, \"instruction_set\": \"%s\", \"checksum\": %g}\n", best, lockstep::cpu::name(set),
              static_cast<double>(kept));
}
