// One rank of a job under mpirun; see mpi_test.cpp. Usage: mpi_worker collectives|late|tags. Every rank checks its
// results, prints "rank R of W on BACKEND: well" and ends with status 0; what fails is printed, with status 3.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/mpi/mpi_transport.h"
#include "lockstep/distributed/process_group/transport_executor.h"

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
    std::vector<ls::Tensor> given, taken;
    for (int r = 0; r < world; ++r) {
      given.push_back(ls::full({size + r}, rank + 1));
      taken.push_back(ls::zeros({size + rank}));
    }
    group.all_to_all(taken, given)->wait();
    for (int r = 0; r < world; ++r) expect(taken[static_cast<std::size_t>(r)], r + 1, "all_to_all of lists");
    const ls::Tensor reduced = ls::zeros({size + rank});
    group.reduce_scatter(reduced, given)->wait();
    expect(reduced, sum, "reduce_scatter of a list");
    const ls::Tensor bits = ls::full({size}, 1 << rank, {.dtype = ls::kInt32});
    group.all_reduce(bits, ls::distributed::ReduceOp::bor)->wait();
    expect(bits, (1 << world) - 1, "bor");
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

void require(bool holds, const std::string& what) {
  if (!holds) throw ls::Error(what);
}

/// All messages under one of MPI's tags: each must meet the receive of its own tag, and write to its memory alone.
void check_one_tag(int rank, int world) {
  using ls::distributed::Transport;
  const auto soon = [] { return ls::deadline_in(Milliseconds(30'000)); };
  const std::unique_ptr<Transport> transport = ls::distributed::mpi::make_mpi_transport(soon(), 1);
  const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
  const std::vector<std::size_t> sizes{3, 1'000'000, 4096, 4097, 1, 70'000};
  constexpr std::size_t kBehind = 1'000'000;
  constexpr std::byte kUntouched{0xEE};
  const auto value = [](std::size_t i, int from) { return std::byte(i + 1 + 16 * static_cast<unsigned>(from)); };
  for (int round = 0; round < 6; ++round) {
    std::vector<std::vector<std::byte>> sent, found;
    std::vector<std::unique_ptr<Transport::Request>> sends, receives(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent.emplace_back(sizes[i], value(i, rank));
      found.emplace_back(sizes[i] + kBehind, kUntouched);
    }
    const auto send_all = [&] {
      for (std::size_t i = 0; i < sizes.size(); ++i)
        sends.push_back(transport->send(next, 1000 + i, sent[i].data(), sizes[i]));
    };
    if (round % 2 == 0) send_all();
    // The other way round, and in two orders.
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const std::size_t i = round % 3 == 0 ? sizes.size() - 1 - k : (k + 2) % sizes.size();
      receives[i] = transport->recv(previous, 1000 + i, found[i].data(), sizes[i]);
    }
    if (round % 2 == 1) send_all();
    for (auto& receive : receives) receive->wait(soon());
    for (auto& send : sends) send->wait(soon());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<std::byte> expected(sizes[i], value(i, previous));
      expected.resize(found[i].size(), kUntouched);
      require(found[i] == expected, "message " + std::to_string(i) + " of round " + std::to_string(round) +
                                        " is another, or has gone past its end");
    }
  }
  // A receive that is given up leaves its memory alone, and those that follow work.
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{300'000}}) {
    const std::vector<std::byte> sent(bytes, std::byte{1});
    auto given_up = std::make_unique<std::vector<std::byte>>(bytes, kUntouched);
    {
      const auto receive = transport->recv(previous, bytes + 7, given_up->data(), bytes);
      bool ended = true;
      try {
        receive->wait(ls::deadline_in(Milliseconds(20)));
      } catch (const ls::distributed::TransportError&) {
        ended = false;
      }
      require(!ended, "a receive has ended without a message");
    }
    const auto token = [&](int from, int to, std::uint64_t tag) {
      std::byte sent_token{}, found_token{};
      const auto receive = transport->recv(from, tag, &found_token, 1);
      const auto send = transport->send(to, tag, &sent_token, 1);
      receive->wait(soon());
      send->wait(soon());
    };
    token(next, previous, 10);  // the next rank has given up as well
    std::vector<std::byte> found(bytes, kUntouched);
    const auto receive = transport->recv(previous, 8, found.data(), bytes);
    const auto first = transport->send(next, bytes + 7, sent.data(), bytes);
    const auto second = transport->send(next, 8, sent.data(), bytes);
    receive->wait(soon());
    second->wait(soon());
    require(*given_up == std::vector(bytes, kUntouched), "a receive that was given up has been written");
    require(found == sent, "a receive after one that was given up is wrong");
    token(previous, next, 9);
  }
}

/// With so few tags that all operations share them: in order, and where each waits for itself alone.
void check_few_tags(const ls::distributed::ProcessGroup& job) {
  for (const std::uint64_t tags : {1, 3}) {
    const auto group = ls::distributed::make_transport_group(
        "mpi", {.rank = job.rank(), .world_size = job.world_size(), .timeout = Milliseconds(30'000)},
        ls::distributed::mpi::make_mpi_transport(ls::deadline_in(Milliseconds(30'000)), tags), nullptr);
    check_collectives(*group);
    std::vector<ls::Tensor> tensors;
    std::vector<ls::distributed::WorkPtr> works;
    for (int round = 0; round < 4; ++round) {
      for (const std::int64_t size : {1, 3'000, 200'000, 50, 20'000}) {
        for (int peer = 0; peer < job.world_size(); ++peer) {
          if (peer == job.rank()) continue;
          tensors.push_back(ls::zeros({size}));
          works.push_back(group->recv(tensors.back(), peer));
          works.push_back(group->send(ls::full({size}, 1 + job.rank()), peer));
        }
        tensors.push_back(ls::full({size}, 1 + job.rank()));
        works.push_back(group->all_reduce(tensors.back()));
      }
      for (const auto& work : works) work->wait();
      std::size_t at = 0;
      for (int size = 0; size < 5; ++size) {
        for (int peer = 0; peer < job.world_size(); ++peer)
          if (peer != job.rank()) expect(tensors[at++], 1 + peer, "recv");
        expect(tensors[at++], job.world_size() * (job.world_size() + 1) / 2.0, "all_reduce");
      }
      tensors.clear();
      works.clear();
    }
  }
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
    if (std::strcmp(argv[1], "tags") == 0) {
      check_few_tags(*job.process_group());
      check_one_tag(rank, job.world_size());
    }
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
