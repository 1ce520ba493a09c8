#include "lockstep/distributed/tensor_parallel/alike_gradients.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

constexpr int kPasses = 2;           // backward passes of each parameter that are looked at
constexpr double kTolerance = 1e-4;  // of the squares' sums; ranks compute the same, so they are equal

void check_alike(const Tensor& gradient, const std::string& name, ProcessGroup& group) {
  const NoGradGuard values_only;
  const Tensor wide = gradient.detach().to(kFloat64);
  const Tensor square = as_contiguous((wide * wide).sum().view({1}));
  const Tensor all = empty({group.world_size()}, options_of(square));
  static const OperationLabel label("gradients that ranks have alike");
  const LabelScope scope(label);
  group.all_gather(all, square)->wait();
  const std::vector<double> squares = all.to_vector<double>();
  for (std::size_t rank = 1; rank < squares.size(); ++rank) {
    const double first = squares.front(), other = squares[rank];
    if (!std::isfinite(first) || !std::isfinite(other)) continue;
    LOCKSTEP_CHECK(
        std::abs(first - other) <= kTolerance * std::max(first, other),
        "[TensorParallel] the gradient of parameter '{}' differs by rank: its norm is {} on rank 0 and {} on rank {} "
        "of "
        "the ranks that hold layers together. What they do not divide they compute alike: give them the same samples "
        "and the same seed, and say in the plan of each layer that computes a rank's own tokens or heads that it does "
        "(sequence, heads)",
        name, std::sqrt(first), std::sqrt(other), rank);
  }
}

}  // namespace

AlikeGradients::AlikeGradients(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group) {
  for (nn::NamedTensor& each : parameters) {
    const Tensor parameter = each.tensor;
    if (!parameter.requires_grad() || !parameter.device().is_cpu()) continue;
    const std::uint64_t key =
        parameter.register_hook([name = std::move(each.name), group, left = kPasses](const Tensor& gradient) mutable {
          if (left == 0) return;
          --left;
          check_alike(gradient, name, *group);
        });
    hooks_.emplace_back(parameter, key);
  }
}

AlikeGradients::~AlikeGradients() {
  for (const auto& [parameter, key] : hooks_) parameter.remove_hook(key);
}

}  // namespace lockstep::distributed
