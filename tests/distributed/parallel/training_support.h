#pragma once

// What the tests of parallel training share: a small model with fixed weights, batches, ranks as threads, and the
// comparison with one process.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/nn.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed::testing {

using lockstep::testing::Link;
using lockstep::testing::make_input;

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 3;

struct Net : nn::Module {
  nn::Linear fc1{this, "fc1", kFeatures, 5};
  nn::Linear fc2{this, "fc2", 5, kClasses};
  Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
};

/// Everybody starts from these values, so that runs can be compared.
inline void set_weights(nn::Module& module) {
  std::uint32_t seed = 1;
  for (const Tensor& parameter : module.parameters())
    copy_values(make_input(parameter.sizes(), seed++, kFloat32, -0.4, 0.4), parameter);
}

inline data::Batch make_batch(std::int64_t n, std::uint32_t seed = 7) {
  data::Batch batch;
  batch.x = make_input({n, kFeatures}, seed, kFloat32);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back((i * 7 + seed) % kClasses);
  batch.y = tensor(labels);
  return batch;
}

inline data::Batch part_of(const data::Batch& batch, std::int64_t begin, std::int64_t size) {
  return {rows(batch.x, begin, size), rows(batch.y, begin, size), batch.size()};
}

inline Tensor mean_loss(nn::Module& module, const data::Batch& part) {
  return cross_entropy(module.forward(part.x), part.y);
}

using Values = std::vector<std::vector<double>>;

inline Values gradients_of(const nn::Module& module) {
  Values gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad().to_vector<double>());
  return gradients;
}

inline Values weights_of(const nn::Module& module) {
  Values weights;
  for (const Tensor& parameter : module.parameters()) weights.push_back(parameter.to_vector<double>());
  return weights;
}

inline double largest_difference(const Values& a, const Values& b) {
  double largest = a.size() == b.size() ? 0.0 : HUGE_VAL;
  for (std::size_t p = 0; p < a.size() && p < b.size(); ++p) {
    if (a[p].size() != b[p].size()) return HUGE_VAL;
    for (std::size_t i = 0; i < a[p].size(); ++i) {
      const double difference = std::abs(a[p][i] - b[p][i]);
      largest = difference <= largest ? largest : difference;  // a NaN is kept
    }
  }
  return largest;
}

/// Number of ranks, and how they talk.
using World = std::tuple<int, Link>;

inline std::string world_name(const ::testing::TestParamInfo<World>& info) {
  return (std::get<1>(info.param) == Link::gloo ? "gloo" : "in_process") + std::to_string(std::get<0>(info.param));
}

/// Runs body on every rank of the world, each a thread.
inline void run_on(const World& world, const std::function<void(const ProcessGroupPtr&)>& body) {
  lockstep::testing::run_ranks(std::get<0>(world), std::get<1>(world), [&](ProcessGroup& group) {
    body(ProcessGroupPtr(ProcessGroupPtr(), &group));  // not owning
  });
}

inline auto all_worlds() {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(Link::in_process, Link::gloo));
}

/// Collectives of a kind that the group has run.
inline int count_operations(const ProcessGroup& group, OperationKind kind) {
  int count = 0;
  for (const OperationRecord& record : group.records()) count += record.operation.kind == kind ? 1 : 0;
  return count;
}

}  // namespace lockstep::distributed::testing
