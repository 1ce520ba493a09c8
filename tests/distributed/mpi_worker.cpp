// One rank of a job under mpirun; see mpi_test.cpp. Usage: mpi_worker collectives|late. Every rank checks its results,
// prints "rank R of W on BACKEND: well" and ends with status 0; what fails is printed, with status 3.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/distributed/job/job.h"

namespace ls = lockstep;
using ls::distributed::Milliseconds;

namespace {

void expect(const ls::Tensor& tensor, double value, const char* what) {
  for (const double found : tensor.to_vector<double>())
    if (found != value)
      throw ls::Error(std::string(what) + ": expected " + std::to_string(value) + ", found " + std::to_string(found));
}

void check_collectives(ls::distributed::ProcessGroup& group) {
  const int rank = group.rank(), world = group.world_size();
  const double sum = world * (world + 1) / 2.0;
  for (const std::int64_t size : {1, 1000, 100'003, 2'000'000}) {
    ls::Tensor tensor = ls::full({size}, rank + 1);
    group.all_reduce(tensor)->wait();
    expect(tensor, sum, "all_reduce");
    tensor = ls::full({size}, rank + 1);
    group.broadcast(tensor, world - 1)->wait();
    expect(tensor, world, "broadcast");
    const ls::Tensor output = ls::zeros({size});
    group.reduce_scatter(output, ls::full({size * world}, rank + 1))->wait();
    expect(output, sum, "reduce_scatter");
    const ls::Tensor all = ls::zeros({world, size});
    group.all_gather(all, ls::full({size}, 7))->wait();
    expect(all, 7, "all_gather");
    const ls::Tensor blocks = ls::zeros({size * world});
    group.all_to_all(blocks, ls::full({size * world}, 5))->wait();
    expect(blocks, 5, "all_to_all");
    std::vector<std::int64_t> counts;
    for (int r = 0; r < world; ++r) counts.push_back(r == 0 ? 0 : size - r % 2);
    const std::int64_t own = counts[static_cast<std::size_t>(rank)];
    std::int64_t sum_of_counts = 0;
    for (const std::int64_t count : counts) sum_of_counts += count;
    const ls::Tensor pieces = ls::zeros({sum_of_counts});
    group.all_gather_uneven(pieces, ls::full({own}, 9), counts)->wait();
    expect(pieces, 9, "all_gather_uneven");
    const ls::Tensor mine = ls::zeros({own * world});
    const std::vector<std::int64_t> from(static_cast<std::size_t>(world), own);
    group.all_to_all_uneven(mine, ls::full({sum_of_counts}, 4), from, counts)->wait();
    expect(mine, 4, "all_to_all_uneven");
    const ls::Tensor theirs = ls::zeros({size});
    const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
    const auto recv = group.recv(theirs, previous), send = group.send(ls::full({size}, rank), next);
    recv->wait();
    send->wait();
    expect(theirs, previous, "recv");
  }
  const std::vector<std::string> names = group.all_gather_object("rank " + std::to_string(rank));
  for (int r = 0; r < world; ++r)
    if (names.at(static_cast<std::size_t>(r)) != "rank " + std::to_string(r)) throw ls::Error("all_gather_object");
  group.barrier()->wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const bool late = std::strcmp(argv[1], "late") == 0;
  const Milliseconds timeout(late ? 2'000 : 30'000);
  int rank = -1;
  try {
    ls::distributed::Job job = ls::distributed::init({.backend = "mpi", .timeout = timeout});
    rank = job.rank();
    check_collectives(*job.process_group());
    if (late) {
      if (rank == 1) std::this_thread::sleep_for(3 * timeout);
      const ls::Tensor tensor = ls::ones({100'000});
      job.process_group()->all_reduce(tensor)->wait();
    }
    std::printf("rank %d of %d on %s: well\n", rank, job.world_size(), job.backend().c_str());
    return 0;
  } catch (const ls::Error& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    // The one that is late must not end first: mpirun would end the others.
    if (late && rank != 1) std::this_thread::sleep_for(timeout / 2);
    return 3;
  }
}
