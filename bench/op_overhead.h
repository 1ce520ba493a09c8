#pragma once

// What the overhead benchmarks of every library share. Standard library only.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace op_overhead {

constexpr int kChain = 1000;
constexpr int kElements = 16;
constexpr int kRounds = 401;

struct Times {
  double forward_ns, backward_ns;
};

/// `round()` runs a chain of kChain operations and its backward pass, and returns nanoseconds per operation of each.
/// Prints one line of JSON: the medians of kRounds rounds, after as many to warm up as a tenth of that.
template <typename Round>
void run(const char* library, Round&& round) {
  std::vector<double> forward, backward;
  for (int i = -kRounds / 10; i < kRounds; ++i) {
    const Times times = round();
    if (i < 0) continue;
    forward.push_back(times.forward_ns);
    backward.push_back(times.backward_ns);
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  std::printf("{\"library\": \"%s\", \"forward_us\": %.4f, \"backward_us\": %.4f}\n", library, median(forward) * 1e-3,
              median(backward) * 1e-3);
}

/// Nanoseconds per operation since `start`.
inline double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kChain;
}

}  // namespace op_overhead
