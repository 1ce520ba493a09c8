// One rank of a job in which something goes wrong; see fault_test.cpp. Prints "ready" once it has all-reduced with the
// others, so that no fault is tested on a world of one, and ends with status 3 and the error on stdout when it is told
// of the fault. Usage: fault_worker URL RANK WORLD_SIZE TIMEOUT_MS SCENARIO FAULTY_RANK BACKEND

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/factories.h"
#include "distributed/job/job.h"

namespace ls = lockstep;
using ls::distributed::Milliseconds;

namespace {

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void misbehave(const std::string& scenario, ls::distributed::ProcessGroup& group, Milliseconds timeout) {
  if (scenario == "hang") pause();  // the test kills or stops this process
  if (scenario == "large") {
    for (;;) group.all_reduce(ls::ones({4'000'000}))->wait();
  }
  if (scenario == "late") std::this_thread::sleep_for(4 * timeout);
  if (scenario == "leave") return;
  if (scenario == "throw") throw ls::Error("out of milk");
  if (scenario == "operation") group.broadcast(ls::ones({1024}), 0)->wait();
  if (scenario == "shape") group.all_reduce(ls::ones({7}))->wait();
  if (scenario == "dtype") group.all_reduce(ls::ones({1024}, {.dtype = ls::kFloat64}))->wait();
  if (scenario == "reduction") group.all_reduce(ls::ones({1024}), ls::distributed::ReduceOp::max)->wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const std::string scenario = argv[5];
  const int rank = std::atoi(argv[2]), faulty = std::atoi(argv[6]);
  const Milliseconds timeout(std::atoi(argv[4]));
  try {
    // The meeting has a deadline of its own: a machine under load starts processes slowly.
    ls::distributed::Job job = ls::distributed::init({.init_method = argv[1],
                                                      .backend = argv[7],
                                                      .timeout = timeout,
                                                      .rank = rank,
                                                      .world_size = std::atoi(argv[3])});
    auto& group = *job.process_group();
    const ls::Tensor count = ls::ones({1});
    group.all_reduce(count)->wait();
    say("ready " + std::to_string(static_cast<int>(count.item())));
    if (rank == faulty) {
      misbehave(scenario, group, timeout);
    } else {
      const auto start = std::chrono::steady_clock::now();
      try {
        const ls::Tensor tensor = ls::ones({scenario == "large" ? 4'000'000 : 1024});
        do group.all_reduce(tensor)->wait();
        while (scenario == "large");
      } catch (const ls::Error&) {
        const auto took = std::chrono::steady_clock::now() - start;
        say("took " + std::to_string(std::chrono::duration_cast<Milliseconds>(took).count()));
        throw;
      }
    }
    say("ended well");
    return 0;
  } catch (const ls::Error& error) {
    say(std::string("error ") + error.what());
    return 3;
  }
}
