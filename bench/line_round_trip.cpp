// How long a line of memory takes from one core to another and back, in ns, for each pair of the first cores that this
// process may use: some 100 where the two share a last-level cache, 500 and more where they do not. Loops of several
// threads hand lines over at their begin and end, and whatever one of them wrote and another reads; so figures of
// several threads are comparable only where this one is. A virtual machine's cores may be moved while it runs. Prints
// one line of JSON a pair.

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/turns.h"

namespace {

constexpr int kRounds = 20'000, kMostCores = 4;

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

double round_trip(int here, int there) {
  struct alignas(128) Line {
    std::atomic<int> value{0};
  } asked, answered;
  double best = 0;
  std::thread other([&] {
    stay_on(there);
    for (int i = 1; i <= 3 * kRounds; ++i) {
      while (asked.value.load() < i) {
      }
      answered.value.store(i);
    }
  });
  stay_on(here);
  for (int repeat = 0, i = 1; repeat < 3; ++repeat) {
    const double start = turns::now(false);
    for (int n = 0; n < kRounds; ++n, ++i) {
      asked.value.store(i);
      while (answered.value.load() < i) {
      }
    }
    const double one = (turns::now(false) - start) / kRounds;
    if (repeat == 0 || one < best) best = one;
  }
  other.join();
  return best;
}

}  // namespace

int main() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < kMostCores; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  for (std::size_t i = 0; i < cores.size(); ++i)
    for (std::size_t j = i + 1; j < cores.size(); ++j)
      std::printf("{\"cores\": [%d, %d], \"round_trip_ns\": %.0f}\n", cores[i], cores[j],
                  round_trip(cores[i], cores[j]) * 1e9);
}
