// An optimizer divided over ranks, against the undivided one: equal bits.

#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

#include <functional>
#include <map>
#include <mutex>

#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using optim::Optimizer;
using Factory = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor> parameters)>;

constexpr std::size_t kTinyChunk = 40;  // bytes: parameters and chunks cut each other anywhere

struct Kind {
  const char* name;
  Factory make;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"sgd", [](std::vector<Tensor> p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1}); }},
      {"sgd_momentum",
       [](std::vector<Tensor> p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
       }},
      {"adam",
       [](std::vector<Tensor> p) {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01});
       }},
      {"adamw",
       [](std::vector<Tensor> p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.01}); }},
      {"groups",  // in another order than the model's, and one keeps no state
       [](std::vector<Tensor> p) {
         const std::vector<Tensor> first{p[3], p[0]}, second{p[2]}, third{p[1]};
         using Groups = std::vector<optim::ParamGroup<optim::SGDOptions>>;
         return std::make_unique<optim::SGD>(Groups{{first, {.lr = 0.1}},
                                                    {second, {.lr = 0.2, .momentum = 0.9, .weight_decay = 0.01}},
                                                    {third, {.lr = 0.3, .momentum = 0.5, .nesterov = true}}});
       }}};
  return all;
}

std::map<std::string, std::vector<double>> values_of(const optim::OptimizerState& state) {
  std::map<std::string, std::vector<double>> values;
  for (const nn::NamedTensor& each : state.tensors) values[each.name] = each.tensor.to_vector<double>();
  for (const auto& [name, value] : state.scalars) values["scalar " + name] = {value};
  return values;
}

struct Training {
  Training(const ProcessGroupPtr& group, const Factory& factory, bool sharded, std::int64_t shards,
           std::size_t chunk_bytes)
      : ddp((set_weights(net), net), group, {.logical_shards = shards, .first_bucket_bytes = 32, .bucket_bytes = 64}) {
    if (sharded)
      optimizer = std::make_unique<ZeroRedundancyOptimizer>(factory(net.parameters()), group, chunk_bytes);
    else
      optimizer = factory(net.parameters());
  }
  void run(std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step < last; ++step) {
      if (step == 2) optimizer->set_lr(0.05);
      if (step == 3)
        for (std::size_t group = 0; group < optimizer->num_param_groups(); ++group)
          if (optimizer->momentum(group) != 0.0) optimizer->set_momentum(0.8, group);
      ddp.step(make_batch(13, static_cast<std::uint32_t>(step + 1)),
               [&](const data::Batch& part) { return mean_loss(net, part); });
      optimizer->step();
    }
  }
  // On rank 0.
  optim::OptimizerState state() const {
    if (auto* zero = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get())) {
      zero->consolidate();
      if (ddp_rank() != 0) return {};
    }
    return optimizer->state();
  }
  int ddp_rank() const { return const_cast<DistributedDataParallel&>(ddp).process_group().rank(); }

  Net net;
  DistributedDataParallel ddp;
  std::unique_ptr<Optimizer> optimizer;
};

class ZeroOver : public ::testing::TestWithParam<World> {};

TEST_P(ZeroOver, WeightsAndStateHaveTheBitsOfTheUndividedOptimizer) {
  for (const Kind& kind : kinds())
    for (const std::int64_t shards : {0, 4})
      for (const std::size_t chunk : {kTinyChunk, std::size_t{1} << 20}) {
        SCOPED_TRACE(::testing::Message() << kind.name << ", shards " << shards << ", chunk " << chunk);
        run_on(GetParam(), [&](const ProcessGroupPtr& group) {
          Training whole(group, kind.make, false, shards, chunk);
          Training divided(group, kind.make, true, shards, chunk);
          whole.run(0, 6);
          divided.run(0, 6);
          EXPECT_EQ(weights_of(divided.net), weights_of(whole.net));
          const optim::OptimizerState state = divided.state();
          if (group->rank() != 0) return;
          EXPECT_EQ(state.type, whole.optimizer->state().type);
          EXPECT_EQ(values_of(state), values_of(whole.optimizer->state()));
        });
      }
}

TEST_P(ZeroOver, TheStateIsDividedEvenly) {
  const int world = std::get<0>(GetParam());
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;  // 53 parameters
    const auto zero = zero_redundancy<optim::Adam>(net.parameters(), group, optim::AdamOptions{});
    std::int64_t elements = 0;
    for (const nn::NamedTensor& each : zero->local().state().tensors)
      if (each.name != "steps") elements += each.tensor.numel();
    EXPECT_LE(elements, 2 * ((net.num_parameters() + world - 1) / world));
    EXPECT_STREQ(zero->name(), "Adam");
  });
}

// In lockstep mode the weights do not depend on the number of ranks, and the state is loaded by any number.
TEST_P(ZeroOver, GoesOnFromTheStateOfAnotherWorld) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Training alone(make_single_process_group(), kind.make, false, 4, kTinyChunk);
    alone.run(0, 6);
    // Three ranks begin, as one of GetParam()'s.
    std::mutex mutex;
    optim::OptimizerState saved;
    Values weights;
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Training first(group, kind.make, true, 4, kTinyChunk);
      first.run(0, 4);
      const optim::OptimizerState state = first.state();
      if (group->rank() != 0) return;
      const std::lock_guard lock(mutex);
      saved.type = state.type;
      saved.scalars = state.scalars;
      for (const nn::NamedTensor& each : state.tensors) saved.tensors.push_back({each.name, each.tensor.clone()});
      weights = weights_of(first.net);
    });
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      for (const bool sharded : {true, false}) {
        Training second(group, kind.make, sharded, 4, std::size_t{1} << 20);
        std::size_t p = 0;
        for (const Tensor& parameter : second.net.parameters())
          copy_values(tensor(weights[p++]).view(parameter.sizes()), parameter);
        second.optimizer->load_state(saved);
        second.run(4, 6);
        EXPECT_EQ(weights_of(second.net), weights_of(alone.net)) << "sharded " << sharded;
      }
    });
  }
}

TEST_P(ZeroOver, ParametersOfSeveralDtypesAndFewElements) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const auto train = [&](bool sharded) {
      // Two elements for up to four ranks, and one parameter that never has a gradient.
      std::vector<Tensor> parameters{make_input({2}, 1, kBFloat16), make_input({3, 2}, 2, kFloat64),
                                     make_input({5}, 3, kFloat32), zeros({0}), make_input({7}, 4, kBFloat16)};
      const Factory adam = kinds()[2].make;
      std::unique_ptr<Optimizer> optimizer;
      if (sharded)
        optimizer = std::make_unique<ZeroRedundancyOptimizer>(adam(parameters), group, kTinyChunk);
      else
        optimizer = adam(parameters);
      for (std::uint32_t step = 0; step < 3; ++step) {
        for (std::size_t i = 0; i < parameters.size(); ++i)
          if (i != 2) parameters[i].set_grad(make_input(parameters[i].sizes(), step + 10, parameters[i].dtype()));
        optimizer->step();
      }
      Values values;
      for (const Tensor& parameter : parameters) values.push_back(parameter.to_vector<double>());
      if (auto* zero = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get())) zero->consolidate();
      if (group->rank() == 0)
        for (const auto& [name, state] : values_of(optimizer->state())) values.push_back(state);
      return values;
    };
    EXPECT_EQ(train(true), train(false));
  });
}

// Of the optimizer's tensors each rank reads its part alone, and all ranks together read each once.
TEST_P(ZeroOver, ReadsItsShareOfACheckpoint) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    nn::Linear net(64, 32);
    ZeroRedundancyOptimizer zero(kinds()[2].make(net.parameters()), group);
    const std::int64_t elements = 64 * 32 + 32;
    std::int64_t read = 0;
    optim::OptimizerStateReader state{.type = "Adam",
                                      .tensors = {{"steps", {{2}, kInt64}},
                                                  {"exp_avg.0", {{32, 64}, kFloat32}},
                                                  {"exp_avg_sq.0", {{32, 64}, kFloat32}},
                                                  {"exp_avg.1", {{32}, kFloat32}},
                                                  {"exp_avg_sq.1", {{32}, kFloat32}}},
                                      .scalars = {{"lr", 0.01}, {"momentum", 0.9}},
                                      .read = [&](const std::string& name, std::int64_t begin, std::int64_t size) {
                                        if (name == "steps") return tensor({std::int64_t{1}, std::int64_t{1}});
                                        read += size;
                                        return full({size}, static_cast<double>(begin));
                                      }};
    zero.load_state(state);
    EXPECT_LE(read, 2 * (elements / group->world_size() + 1));
    const Tensor total = tensor({read});
    group->all_reduce(total)->wait();
    EXPECT_EQ(total.item<std::int64_t>(), 2 * elements);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ZeroOver, all_worlds(), world_name);

TEST(Zero, SeesParametersThatMovedToOtherMemory) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    const auto zero = zero_redundancy<optim::SGD>(net.parameters(), group, {.lr = 1.0});
    Values expected;
    for (const Tensor& parameter : net.parameters()) {
      nn::replace_value(parameter, parameter.clone());
      parameter.set_grad(ones(parameter.sizes()));
      expected.push_back(sub(parameter.detach(), 1.0).to_vector<double>());
    }
    zero->step();
    EXPECT_EQ(weights_of(net), expected);
  });
}

TEST(Zero, ExplainsWhatIsWrong) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    const auto zero = zero_redundancy<optim::Adam>(net.parameters(), group, optim::AdamOptions{});
    const auto says = [](const std::string& error, const std::string& text) {
      EXPECT_NE(error.find(text), std::string::npos) << error;
    };
    says(error_of([&] { zero->state(); }), "spread over 2 ranks; call consolidate()");
    zero->consolidate();
    if (group->rank() == 0)
      EXPECT_EQ(zero->state().tensors.size(), 9u);
    else
      says(error_of([&] { zero->state(); }), "this is rank 1");
    for (const Tensor& parameter : net.parameters()) parameter.set_grad(ones(parameter.sizes()));
    zero->step();
    says(error_of([&] { zero->state(); }), "after the last step");
    says(error_of([&] { zero->load_state(optim::OptimizerState{.type = "SGD", .tensors = {}, .scalars = {}}); }),
         "is that of SGD");
    optim::Adam whole(net.parameters());
    optim::OptimizerState state = whole.state();
    state.tensors.pop_back();
    says(error_of([&] { zero->load_state(state); }), "missing exp_avg_sq.3");
    state.tensors.push_back({"exp_avg_sq.3", zeros({1})});
    state.tensors.push_back({"exp_avg_sq.4", zeros({1})});
    says(error_of([&] { zero->load_state(state); }), "exp_avg_sq.3 is float32 [1], expected float32 [3]");
    says(error_of([&] { zero->load_state(state); }), "unexpected exp_avg_sq.4");

    says(
        error_of([&] { zero_redundancy<optim::Adafactor>(net.parameters(), group); }),
        "[ZeroRedundancyOptimizer] Adafactor takes norms or products of whole parameters, of which a rank would have a "
        "part; expected an optimizer that updates each element by itself, such as AdamW, or use Adafactor undivided, "
        "with zero = 0");
    nn::Linear other(4, group->rank() + 1);
    says(error_of([&] { zero_redundancy<optim::SGD>(other.parameters(), group, optim::SGDOptions{}); }),
         "rank 1 has 2 parameters with 10 elements, rank 0 2 parameters with 5 elements");
    net.to(kFloat64);
    says(error_of([&] { zero->step(); }), "construct the optimizer");
  });
}

}  // namespace
}  // namespace lockstep::distributed
