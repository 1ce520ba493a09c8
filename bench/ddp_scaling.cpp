// How much of N processes' speed DistributedDataParallel keeps: each round trains rank 0 alone, then all ranks
// together, each rank on batches of the same size.
//
//   lockstep-run --nproc-per-node 2 -- ddp_scaling cnn 64
//
// Rank 0 prints one line of JSON: images/s alone and together, and the efficiency, together / (N x alone), as the
// median of the rounds with its range.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "apps/models/models.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"

namespace {

using namespace lockstep;

constexpr int kRounds = 11;
constexpr int kWarmUp = 2;

// Images per second of `step`, which trains `images`, for about a second.
template <typename Step>
double rate(std::int64_t images, int steps, Step&& step) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  return static_cast<double>(images * steps) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Trainer {
  explicit Trainer(const std::string& model)
      : net(models::make_model(model)), optimizer(net->parameters(), {.lr = 0.01, .momentum = 0.9}) {}

  std::unique_ptr<nn::Module> net;
  optim::SGD optimizer;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    fmt::print(stderr, "usage: ddp_scaling MODEL BATCH_OF_A_RANK [STEPS A ROUND]\n");
    return 2;
  }
  try {
    const std::string model = argv[1];
    const std::int64_t size = std::atoll(argv[2]);
    const int steps = argc == 4 ? std::atoi(argv[3]) : 20;
    set_num_threads(1);
    const distributed::Job job = distributed::init();
    Trainer alone(model), together(model);
    distributed::DistributedDataParallel ddp(*together.net, job);
    const Tensor x = randn({size, 1, 28, 28}), y = randint(0, 10, {size});
    std::vector<double> single, all, efficiency;
    for (int round = 0; round < kWarmUp + kRounds; ++round) {
      double solo = 0;
      if (job.is_rank0())
        solo = rate(size, steps, [&] {
          const Tensor loss = cross_entropy(alone.net->forward(x), y);
          alone.optimizer.zero_grad();
          loss.backward();
          alone.optimizer.step();
        });
      job.process_group()->barrier()->wait();
      const double both = rate(size * job.world_size(), steps, [&] {
        const Tensor loss = cross_entropy(ddp(x), y);
        together.optimizer.zero_grad();
        loss.backward();
        together.optimizer.step();
      });
      if (round < kWarmUp || !job.is_rank0()) continue;
      single.push_back(solo);
      all.push_back(both);
      efficiency.push_back(both / (solo * static_cast<double>(job.world_size())));
    }
    if (!job.is_rank0()) return 0;
    for (auto* values : {&single, &all, &efficiency}) std::ranges::sort(*values);
    fmt::print(
        "{{\"model\": \"{}\", \"batch\": {}, \"ranks\": {}, \"alone\": {:.0f}, \"together\": {:.0f}, "
        "\"efficiency\": {:.3f}, \"low\": {:.3f}, \"high\": {:.3f}}}\n",
        model, size, job.world_size(), single[kRounds / 2], all[kRounds / 2], efficiency[kRounds / 2],
        efficiency.front(), efficiency.back());
  } catch (const Error& error) {
    fmt::print(stderr, "ddp_scaling: {}\n", error.what());
    return 1;
  }
  return 0;
}
