// Meshes of processes that a program starts by itself, with spawn(): the same bits as in one process.

#include <fmt/core.h>

#include "lockstep/distributed/launcher/spawn.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

// Transport and groups as init() finds them; what a rank finds otherwise ends all, and is told here.
TEST(MeshesBySpawn, GiveTheBitsOfOneProcess) {
  Training training{.shards = 4, .tensor_shards = 2, .clip = 0.05, .dropout = 0.1, .steps = 4};
  const Trained one = train_on_mesh(training, make_single_process_group(), {}, /*plain=*/true);
  for (const auto& [sizes, zero] : {std::pair{MeshSizes{.data = 2, .pipeline = 2, .tensor = 2}, 3},
                                    {{.data = 2, .pipeline = 3}, 2},
                                    {{.pipeline = 2, .tensor = 2}, 0}})
    EXPECT_NO_THROW(launcher::spawn(
        [&, sizes = sizes, zero = zero](int rank) {
          const Job job = init({.timeout = Milliseconds(60'000)});
          training.zero = zero;
          const Trained found = train_on_mesh(training, job.process_group(), sizes);
          if (const double difference = difference_of(found, one); difference != 0.0)
            throw Error(fmt::format("rank {} of {} differs by {}", rank, to_string(sizes), difference));
        },
        sizes.data * sizes.pipeline * sizes.tensor));
}

// The check above can fail: other shards are other sums.
TEST(MeshesBySpawn, ADifferenceIsTold) {
  const Training training{.shards = 4, .steps = 4};
  const Trained one = train_on_mesh({.shards = 2, .steps = 4}, make_single_process_group(), {}, /*plain=*/true);
  EXPECT_THROW(launcher::spawn(
                   [&](int) {
                     const Job job = init({.timeout = Milliseconds(60'000)});
                     const Trained found = train_on_mesh(training, job.process_group(), {.data = 2, .pipeline = 2});
                     if (difference_of(found, one) != 0.0) throw Error("it differs");
                   },
                   4),
               launcher::SpawnError);
}

}  // namespace
}  // namespace lockstep::distributed
