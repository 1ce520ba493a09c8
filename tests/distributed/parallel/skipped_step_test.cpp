// What lockstep mode notices while it runs: a rank that goes on where the others have not come, and parameters that
// forward() changes.

#include <stdexcept>

#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

// Its next step would be reduced with the others' last one.
TEST(SkippedStep, IsAnErrorInLockstepMode) {
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.logical_shards = 4});
    const std::string error = error_of([&] {
      for (int i = 0; i < 4; ++i) {
        try {
          ddp.step(make_batch(16, static_cast<std::uint32_t>(i)), [&](const data::Batch& part) {
            if (i == 2 && group->rank() == 1) throw std::out_of_range("a bad sample");
            return mean_loss(net, part);
          });
        } catch (const std::out_of_range&) {
          continue;  // as if nothing were
        }
      }
    });
    EXPECT_NE(error.find("step 2"), std::string::npos) << error;
    EXPECT_NE(error.find("step 3"), std::string::npos) << error;
  });
}

// Of 8 shards the last rank has two, and has sent its losses when the second backward() throws; the others have not.
TEST(SkippedStep, OnAllRanksAtOtherPlacesIsToldAsSuch) {
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.logical_shards = 8});
    int calls = 0;
    bool throws = false;
    net.fc1.weight.register_hook([&](const Tensor&) {
      if (++calls == 2 && throws) throw std::out_of_range("a bad sample");
    });
    const std::string error = error_of([&] {
      for (int i = 0; i < 4; ++i) {
        calls = 0;
        throws = i == 2;
        try {
          ddp.step(make_batch(16, static_cast<std::uint32_t>(i)),
                   [&](const data::Batch& part) { return mean_loss(net, part); });
        } catch (const std::out_of_range&) {
        }
      }
    });
    EXPECT_NE(error.find("every rank had caught an exception before (a bad sample)"), std::string::npos) << error;
  });
}

struct Renormalizing : nn::Module {
  nn::Embedding words{this, "words", kClasses, kFeatures, {.max_norm = 0.5}};
  nn::Linear fc{this, "fc", kFeatures, kClasses};
  Tensor forward(Tensor x) override { return fc(words(argmax(x, 1) % kClasses)); }
};

// Each rank would change the rows that its own samples use.
TEST(ChangedParameter, IsAnErrorInLockstepMode) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Renormalizing model;
    set_weights(model);
    DistributedDataParallel ddp(model, group, {.logical_shards = 4});
    const std::string error =
        error_of([&] { ddp.step(make_batch(16), [&](const data::Batch& part) { return mean_loss(model, part); }); });
    EXPECT_NE(error.find("forward() changed the parameter 'words.weight'"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace lockstep::distributed
