// Time of one all_reduce (float32, sum) between processes of this machine, by size.
// Usage: bench_all_reduce [PROCESSES=2] [ROUNDS=40]. Prints median and fastest of the rounds, seen from rank 0.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/factories.h"
#include "core/thread_pool.h"
#include "distributed/job/job.h"

namespace ls = lockstep;

namespace {

void measure(ls::distributed::ProcessGroup& group, std::int64_t bytes, int rounds) {
  using Clock = std::chrono::steady_clock;
  const ls::Tensor tensor = ls::zeros({bytes / 4});
  std::vector<double> micros;
  for (int round = -3; round < rounds; ++round) {
    group.barrier()->wait();
    const auto start = Clock::now();
    group.all_reduce(tensor)->wait();
    const double took = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (round >= 0) micros.push_back(took);
  }
  std::sort(micros.begin(), micros.end());
  const double median = micros[micros.size() / 2];
  if (group.rank() == 0)
    std::printf("%10lld bytes  median %9.0f us  best %9.0f us  %6.2f GB/s\n", static_cast<long long>(bytes), median,
                micros.front(), static_cast<double>(bytes) / median / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const int processes = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 40;
  if (processes < 2 || rounds < 1) {
    std::fputs("usage: bench_all_reduce [PROCESSES >= 2] [ROUNDS >= 1]\n", stderr);
    return 2;
  }
  const std::string store = "/tmp/lockstep-bench-" + std::to_string(getpid());
  int rank = 0;
  for (int r = 1; r < processes && rank == 0; ++r)
    if (fork() == 0) rank = r;
  int status = 0;
  try {
    ls::set_num_threads(1);
    ls::distributed::Job job =
        ls::distributed::init({.init_method = "file://" + store, .rank = rank, .world_size = processes});
    for (const std::int64_t bytes : {1 << 10, 16 << 10, 64 << 10, 1 << 20, 4'800'000, 64 << 20})
      measure(*job.process_group(), bytes, bytes > (8 << 20) ? std::max(3, rounds / 5) : rounds);
  } catch (const ls::Error& error) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", error.what());
    status = 1;
  }
  if (rank == 0)
    while (wait(nullptr) > 0) {
    }
  return status;
}
