// What lockstep mode costs: steps of the plain and of the lockstep training of one model, in turns, in one run. Alone
// or as one of several processes:
//
//   lockstep_cost cnn 512 8              one process: V = 8 against a plain step of the same batch
//   lockstep-run --nproc-per-node 2 -- lockstep_cost cnn 128 2
//
// Rank 0 prints one line of JSON: the median of the rounds' ratios, lockstep time / plain time, and their range.

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
#include "lockstep/distributed/parallel/step.h"

namespace {

using namespace lockstep;

constexpr int kRounds = 11;
constexpr int kWarmUp = 2;

struct Trainer {
  Trainer(const distributed::Job& job, const std::string& model, std::int64_t shards)
      : step([&] { return models::make_model(model); },
             {.job = job.world_size() > 1 ? &job : nullptr, .logical_shards = shards}),
        optimizer(step.module().parameters(), {.lr = 0.01, .momentum = 0.9}) {}

  double seconds(const data::Batch& batch, int steps) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) {
      step(batch, [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); });
      optimizer.step();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  distributed::TrainingStep step;
  optim::SGD optimizer;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    fmt::print(stderr, "usage: lockstep_cost MODEL GLOBAL_BATCH SHARDS [STEPS A ROUND]\n");
    return 2;
  }
  try {
    const std::string model = argv[1];
    const std::int64_t size = std::atoll(argv[2]);
    const std::int64_t shards = std::atoll(argv[3]);
    const int steps = argc == 5 ? std::atoi(argv[4]) : 4;
    const distributed::Job job = distributed::init();
    Trainer plain(job, model, 0);
    Trainer lockstep(job, model, shards);
    const data::Batch batch{randn({size, 1, 28, 28}), randint(0, 10, {size}), 0};
    std::vector<double> ratios, plain_ms, lockstep_ms;
    for (int round = 0; round < kWarmUp + kRounds; ++round) {
      double times[2] = {};
      for (int turn = 0; turn < 2; ++turn) {
        const bool is_plain = (round + turn) % 2 == 0;
        times[is_plain ? 0 : 1] = (is_plain ? plain : lockstep).seconds(batch, steps) / steps * 1e3;
      }
      if (round < kWarmUp) continue;
      plain_ms.push_back(times[0]);
      lockstep_ms.push_back(times[1]);
      ratios.push_back(times[1] / times[0]);
    }
    for (auto* values : {&ratios, &plain_ms, &lockstep_ms}) std::ranges::sort(*values);
    if (job.is_rank0())
      fmt::print(
          "{{\"model\": \"{}\", \"processes\": {}, \"threads\": {}, \"batch\": {}, \"shards\": {}, \"plain_ms\": "
          "{:.2f}, "
          "\"lockstep_ms\": {:.2f}, \"ratio\": {:.3f}, \"lowest\": {:.3f}, \"highest\": {:.3f}}}\n",
          model, job.world_size(), num_threads(), size, shards, plain_ms[kRounds / 2], lockstep_ms[kRounds / 2],
          ratios[kRounds / 2], ratios.front(), ratios.back());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep_cost: {}\n", error.what());
    return 1;
  }
}
