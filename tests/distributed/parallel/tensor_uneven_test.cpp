// Sizes that the number of tensor shards does not divide: how they are cut, and a vocabulary of 13.

#include "lockstep/distributed/tensor_parallel/tensor_shards.h"
#include "tests/distributed/parallel/tensor_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

// Rows, their gradients and logits of 13 tokens on 2 and 4 shards: to the bit those of one process with as many.
TEST(TensorVocabulary, NeedNotBeAMultipleOfTheShards) {
  struct Tied : nn::Module {
    nn::Embedding table{this, "table", 13, 5};
  };
  const data::Batch batch = tokens_of(3, 1, 13);
  const auto results = [&](const ProcessGroupPtr& group, std::int64_t logical) {
    Tied model;
    set_weights(model);
    const Tensor& weight = model.table.weight;
    const TensorParallel divided(model, {{"table", TensorSplit::vocabulary}},
                                 {.group = group, .logical_shards = logical});
    EXPECT_EQ(weight.size(0), divided.shards().run_of(13, group->rank()).size);
    const Tensor x = model.table(batch.x).reshape({-1, 5});
    const Tensor loss = divided.cross_entropy(x, weight, batch.y.reshape({-1}));
    loss.backward();
    const Tensor whole = divided.whole_of(weight, weight);
    EXPECT_EQ(largest_difference({divided.part_of(weight, whole).to_vector<double>()}, {weight.to_vector<double>()}),
              0.0);
    if (logical > 1) {
      EXPECT_NE(error_of([&] {
                  divided.cross_entropy(x, copy_contiguous(weight), batch.y.reshape({-1}));
                }).find("part of 'table.weight', which is divided unevenly"),
                std::string::npos)
          << "a copy does not tell how many rows there are in all";
    }
    return Values{{loss.item<double>(), divided.clip_grad_norm(0.5)},
                  whole.to_vector<double>(),
                  divided.whole_of(weight, weight.grad()).to_vector<double>(),
                  divided.logits(x, weight).to_vector<double>()};
  };
  const Values undivided = results(make_single_process_group(), 1);
  for (const std::int64_t logical : {2, 4}) {
    const Values one = results(make_single_process_group(), logical);
    EXPECT_LT(largest_difference(one, undivided), 1e-5);
    for (const int world : {1, 2, 4})
      if (logical % world == 0)
        run_in(world, [&](const ProcessGroupPtr& group) {
          EXPECT_EQ(largest_difference(results(group, logical), one), 0.0) << logical << " on " << world;
        });
  }
}

// The rule of Note [Divided sizes], and that a rank's part is cut by it as the whole is.
TEST(DividedSizes, FirstRunsAreLonger) {
  for (const std::int64_t shards : {1, 2, 4, 8})
    for (std::int64_t size = shards; size < 4 * shards; ++size) {
      const DividedSize whole(size, shards);
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < shards; ++i) {
        const SizeRun run = whole.run(i);
        EXPECT_EQ(run.begin, next);
        EXPECT_EQ(run.size, size / shards + (i < size % shards ? 1 : 0));
        next += run.size;
      }
      EXPECT_EQ(next, size);
      for (std::int64_t local = 1; local <= shards; local *= 2)
        for (std::int64_t first = 0; first < shards; first += local) {
          const SizeRun mine = whole.runs({first, first + local});
          for (std::int64_t i = 0; i < local; ++i) {
            EXPECT_EQ(DividedSize(mine.size, local).run(i).size, whole.run(first + i).size);
            EXPECT_EQ(mine.begin + DividedSize(mine.size, local).run(i).begin, whole.run(first + i).begin);
          }
        }
    }
}

}  // namespace
}  // namespace lockstep::distributed
