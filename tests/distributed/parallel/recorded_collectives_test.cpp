// Collectives that autograd records give what one process computes of all ranks' tensors, and its gradients.

#include "lockstep/distributed/parallel/recorded_collectives.h"

#include "lockstep/autograd/backward.h"
#include "lockstep/distributed/parallel/step.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

Tensor rank_input(int rank, std::int64_t rows) {
  return make_input({rows, 3}, static_cast<std::uint32_t>(rank + 1), kFloat64).requires_grad_();
}
/// Another weight for each rank, so that each one's loss counts differently.
double weight_of(int rank) {
  return 1.0 + 0.5 * rank;
}

/// Values and gradients of all ranks' x, where rank r's loss is weight_of(r) * sum(of_rank(r, x...)^3).
using OfRank = std::function<Tensor(int rank, const std::vector<Tensor>& all)>;
std::vector<Tensor> reference(const std::vector<std::int64_t>& rows, const OfRank& of_rank) {
  std::vector<Tensor> all, result;
  for (std::size_t r = 0; r < rows.size(); ++r) all.push_back(rank_input(static_cast<int>(r), rows[r]));
  Tensor loss = zeros({}, kFloat64);
  for (int r = 0; r < static_cast<int>(rows.size()); ++r) {
    const Tensor out = of_rank(r, all);
    loss = loss + (out * out * out).sum() * weight_of(r);
  }
  loss.backward();
  for (const Tensor& each : all) result.push_back(each.grad());
  return result;
}

void expect_as_reference(const std::vector<std::int64_t>& rows, const OfRank& of_rank,
                         const std::function<Tensor(const Tensor& x, const ProcessGroupPtr& group)>& collective) {
  const std::vector<Tensor> expected = reference(rows, of_rank);
  std::vector<Tensor> inputs;
  for (std::size_t r = 0; r < rows.size(); ++r) inputs.push_back(rank_input(static_cast<int>(r), rows[r]).detach());
  for (const Link link : {Link::in_process, Link::gloo})
    run_on({static_cast<int>(rows.size()), link}, [&](const ProcessGroupPtr& group) {
      const int rank = group->rank();
      const Tensor x = rank_input(rank, rows[static_cast<std::size_t>(rank)]);
      const Tensor out = collective(x, group), same = of_rank(rank, inputs);
      EXPECT_LT((out - same).abs().sum().item<double>(), 1e-11);
      ((out * out * out).sum() * weight_of(rank)).backward();
      EXPECT_LT((x.grad() - expected[static_cast<std::size_t>(rank)]).abs().sum().item<double>(), 1e-11) << rank;
    });
}

TEST(RecordedCollectives, GiveTheGradientsOfOneProcess) {
  const auto all = [](int, const std::vector<Tensor>& x) { return cat(x, 0); };
  expect_as_reference({2, 2, 2}, all,
                      [](const Tensor& x, const ProcessGroupPtr& group) { return functional::all_gather(x, group); });
  expect_as_reference({3, 0, 2}, all, [](const Tensor& x, const ProcessGroupPtr& group) {
    return functional::all_gather(x, {3, 0, 2}, group);
  });
  const auto sum = [](int, const std::vector<Tensor>& x) { return x[0] + x[1] + x[2]; };
  expect_as_reference({2, 2, 2}, sum,
                      [](const Tensor& x, const ProcessGroupPtr& group) { return functional::all_reduce(x, group); });
  expect_as_reference(
      {6, 6, 6}, [&](int rank, const std::vector<Tensor>& x) { return sum(rank, x).narrow(0, 2 * rank, 2); },
      [](const Tensor& x, const ProcessGroupPtr& group) { return functional::reduce_scatter(x, group); });
}

// Rank r sends (r + to) % 3 rows to rank `to`.
TEST(RecordedCollectives, RowsGoToOtherRanksAndTheirGradientsBack) {
  const auto count = [](std::int64_t from, std::int64_t to) { return (from + to) % 3; };
  expect_as_reference(
      {3, 3, 3},
      [&](int rank, const std::vector<Tensor>& x) {
        std::vector<Tensor> parts;
        for (int from = 0; from < 3; ++from) {
          std::int64_t first = 0;
          for (int to = 0; to < rank; ++to) first += count(from, to);
          parts.push_back(x[static_cast<std::size_t>(from)].narrow(0, first, count(from, rank)));
        }
        return cat(parts, 0);
      },
      [&](const Tensor& x, const ProcessGroupPtr& group) {
        std::vector<std::int64_t> in, out;
        for (int other = 0; other < 3; ++other) {
          in.push_back(count(group->rank(), other));
          out.push_back(count(other, group->rank()));
        }
        return functional::all_to_all(x, out, in, group);
      });
}

// The gradient's gradient: of sum(all_gather(x)^3) on each of two ranks it is 6 x of each rank's own loss.
TEST(RecordedCollectives, AreDifferentiatedTwice) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const Tensor x = rank_input(group->rank(), 2);
    const Tensor y = functional::all_gather(x, group);
    const Tensor first = grad({(y * y * y).sum()}, {x}, {}, {.create_graph = true})[0];
    EXPECT_LT((first - 2 * 3 * x * x).abs().max().item<double>(), 1e-12) << "of both ranks' losses";
    first.sum().backward();
    EXPECT_LT((x.grad() - 2 * 6 * x).abs().max().item<double>(), 1e-12);
  });
}

TEST(RecordedCollectives, SayWhatDoesNotFit) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const Tensor x = rank_input(group->rank(), 3);
    const auto expect = [](const std::string& error, const char* what) {
      EXPECT_NE(error.find(what), std::string::npos) << error;
    };
    expect(error_of([&] { functional::reduce_scatter(x, group); }), "[ranks * N, *] for 2 ranks, found [3, 3]");
    expect(error_of([&] { functional::all_to_all(x, {1, 1}, {1, 1}, group); }), "2 rows are to be sent, of which x");
    expect(error_of([&] { functional::all_to_all(x, {1, 1}, {3}, group); }), "for each of 2 ranks");
    expect(error_of([&] { functional::all_gather(x, {1, 1}, group); }), "gives 1 rows, of which it has 3");
    expect(error_of([&] { functional::all_gather(tensor({std::int64_t{1}}), group); }), "floating-point");
    expect(error_of([&] { functional::all_reduce(x, nullptr); }), "the group is null");
  });
}

TEST(RecordedCollectives, AreRefusedWhereShardsAreComputedOneByOne) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const ProcessGroupPtr others = group->split(0), own = group->split(group->rank());
    Net net;
    TrainingStep step(net, {.group = group, .logical_shards = 2});
    const auto step_with = [&](const ProcessGroupPtr& of) {
      step(make_batch(8), [&](nn::Module& module, const data::Batch& part) -> LossValue {
        return cross_entropy(functional::all_reduce(module.forward(part.x), of), part.y);
      });
    };
    step_with(own);
    EXPECT_NE(error_of([&] { step_with(others); }).find("[all_reduce] was called in the loss of a step in lockstep"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace lockstep::distributed
