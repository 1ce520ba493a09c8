// Time of one all_reduce (float32, sum) between processes of this machine, by size: every backend, Gloo's and MPI's own
// beside them. All take turns in every round. A round's time is the slowest rank's, from a barrier on; prints a line of
// JSON for each size and contestant, with median and fastest of the rounds. bench/run_all_reduce.py runs it.
// Usage: bench_all_reduce [PROCESSES=2] [ROUNDS=40] [CONTESTANT alone], or mpirun -n PROCESSES bench_all_reduce
// [ROUNDS=40] [CONTESTANT] to have MPI in it.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "bench/all_reduce_peers.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/job/job.h"

namespace ls = lockstep;
using ls::bench::Contestant;
using ls::distributed::ProcessGroupPtr;

namespace {

Contestant plain(const std::string& name, const ProcessGroupPtr& group) {
  return {name, [group](float* data, std::int64_t count) -> std::function<void()> {
            const ls::Tensor tensor = ls::from_blob(data, {count});
            return [group, tensor] { group->all_reduce(tensor)->wait(); };
          }};
}

Contestant tree(const std::string& name, const ProcessGroupPtr& group) {
  return {name, [group](float* data, std::int64_t count) -> std::function<void()> {
            const ls::Tensor tensor = ls::from_blob(data, {count});
            return [group, tensor] { group->all_reduce_tree(tensor, tensor, group->world_size())->wait(); };
          }};
}

void measure(ls::distributed::ProcessGroup& group, const std::vector<Contestant>& contestants, std::int64_t bytes,
             int rounds) {
  using Clock = std::chrono::steady_clock;
  const ls::Tensor tensor = ls::ones({bytes / 4});
  const auto count = static_cast<std::int64_t>(contestants.size());
  std::vector<std::function<void()>> run;
  for (const Contestant& contestant : contestants) run.push_back(contestant.prepare(tensor.data<float>(), bytes / 4));
  for (std::int64_t c = 0; c < count; ++c) {
    tensor.fill_(1);
    run[static_cast<std::size_t>(c)]();
    if (tensor.data<float>()[bytes / 4 - 1] != static_cast<float>(group.world_size()))
      throw ls::Error(contestants[static_cast<std::size_t>(c)].name + ": a wrong sum");
  }
  tensor.fill_(0);
  const ls::Tensor micros = ls::zeros({count, rounds}, {.dtype = ls::kFloat64});
  std::vector<std::int64_t> turns;
  for (std::int64_t c = 0; c < count; ++c) turns.push_back(c);
  std::mt19937 random(1);  // the same on all ranks
  for (int round = -1; round < rounds; ++round) {
    std::shuffle(turns.begin(), turns.end(), random);
    for (const std::int64_t c : turns) {
      group.barrier()->wait();
      const auto start = Clock::now();
      run[static_cast<std::size_t>(c)]();
      const double took = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      if (round >= 0) micros.data<double>()[c * rounds + round] = took;
    }
  }
  group.all_reduce(micros, ls::distributed::ReduceOp::max)->wait();
  if (group.rank() != 0) return;
  for (std::int64_t c = 0; c < count; ++c) {
    double* const of = micros.data<double>() + c * rounds;
    std::sort(of, of + rounds);
    const double median = of[rounds / 2];
    std::printf(
        "{\"processes\": %d, \"bytes\": %lld, \"contestant\": \"%s\", \"median_us\": %.1f, \"best_us\": %.1f, "
        "\"gb_per_s\": %.3f}\n",
        group.world_size(), static_cast<long long>(bytes), contestants[static_cast<std::size_t>(c)].name.c_str(),
        median, of[0], static_cast<double>(bytes) / median / 1e3);
    std::fflush(stdout);
  }
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

int main(int argc, char** argv) {
  const char* const under_mpi = std::getenv("OMPI_COMM_WORLD_RANK");
  const int first = under_mpi ? 0 : 1;
  const int processes = under_mpi ? std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE")) : argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > first + 1 ? std::atoi(argv[first + 1]) : 40;
  if (processes < 2 || rounds < 1) {
    std::fputs("usage: bench_all_reduce [PROCESSES >= 2] [ROUNDS >= 1] [CONTESTANT]\n", stderr);
    return 2;
  }
  // Under mpirun the ranks have one parent.
  const std::string folder = "/tmp/lockstep-bench-" + std::to_string(under_mpi ? getppid() : getpid());
  std::filesystem::create_directories(folder);
  int rank = under_mpi ? std::atoi(under_mpi) : 0;
  if (!under_mpi)
    for (int r = 1; r < processes && rank == 0; ++r)
      if (fork() == 0) rank = r;
  int status = 0;
  try {
    ls::set_num_threads(1);
    std::vector<ls::distributed::Job> jobs;
    std::vector<Contestant> contestants;
    const auto join = [&](const std::string& backend) {
      jobs.push_back(ls::distributed::init({.init_method = "file://" + folder + "/" + backend,
                                            .backend = backend,
                                            .rank = rank,
                                            .world_size = processes}));
      contestants.push_back(plain(backend, jobs.back().process_group()));
      const bool tree_fits = (processes & (processes - 1)) == 0;
      if (tree_fits) contestants.push_back(tree(backend + ", tree", jobs.back().process_group()));
    };
    const std::vector<std::string> backends = ls::distributed::available_backends();
    join("shm");
    if (has(backends, "gloo")) join("gloo");
    if (under_mpi && has(backends, "mpi")) {
      join("mpi");
      for (Contestant& contestant : ls::bench::raw_mpi()) contestants.push_back(std::move(contestant));
    }
    std::filesystem::create_directories(folder + "/raw");
    for (Contestant& contestant : ls::bench::raw_gloo(rank, processes, folder + "/raw"))
      contestants.push_back(std::move(contestant));
    jobs.front().process_group()->barrier()->wait();
    if (rank == 0) std::filesystem::remove_all(folder + "/raw");
    if (argc > first + 2)
      std::erase_if(contestants, [&](const Contestant& each) { return each.name != argv[first + 2]; });
    for (const std::int64_t bytes : {1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4'800'000, 16 << 20, 64 << 20})
      measure(*jobs.front().process_group(), contestants, bytes, bytes > (8 << 20) ? std::max(3, rounds / 5) : rounds);
    contestants.clear();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", error.what());
    status = 1;
  }
  if (rank == 0)
    while (wait(nullptr) > 0) {
    }
  // The stores remove themselves; the folder goes with the last rank.
  std::error_code others_are_there;
  std::filesystem::remove(folder, others_are_there);
  return status;
}
