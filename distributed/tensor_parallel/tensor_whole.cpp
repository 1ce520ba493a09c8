// What divided parameters and their gradients are as a whole.

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_divided.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {

const TensorParallel::Divided* TensorParallel::divided_as(const Tensor& parameter) const {
  for (const Divided& divided : divided_)
    if (divided.parameter.is_same(parameter)) return &divided;
  return nullptr;
}

std::vector<nn::NamedTensor> TensorParallel::full_state() const {
  const NoGradGuard values_only;
  std::vector<nn::NamedTensor> state;
  for (const nn::NamedTensor& each : module_.state()) {
    const Divided* const divided = divided_as(each.tensor);
    state.push_back(
        {each.name, divided ? divided->division.whole(each.tensor, *shards_) : copy_contiguous(each.tensor.detach())});
  }
  return state;
}

Tensor TensorParallel::whole_of(const Tensor& parameter, const Tensor& own) const {
  const Divided* const divided = divided_as(parameter);
  return divided && own.defined() ? divided->division.whole(own, *shards_) : own;
}

Tensor TensorParallel::part_of(const Tensor& parameter, const Tensor& whole) const {
  const Divided* const divided = divided_as(parameter);
  return divided && whole.defined() ? divided->division.own_part(whole, *shards_) : whole;
}

std::vector<double> TensorParallel::gradient_squares(const std::vector<Tensor>& parameters,
                                                     const VisitGradients& visit) const {
  const NoGradGuard values_only;
  const auto square_of = [](const Tensor& values) {
    const Tensor wide = cast_values(as_contiguous(values.detach()), kFloat64);
    return lockstep::sum(mul(wide, wide)).item<double>();
  };
  constexpr std::size_t kWhole = static_cast<std::size_t>(-1);
  std::vector<std::size_t> places;  // among the divided ones
  std::size_t count = 0;
  for (const Tensor& parameter : parameters) places.push_back(divided_as(parameter) ? count++ : kWhole);
  std::vector<std::vector<double>> by_shards(static_cast<std::size_t>(shards_->mine().size()));
  for (std::vector<double>& shard : by_shards) shard.resize(count);
  std::vector<double> squares(parameters.size(), 0.0);
  const auto take = [&](const Tensor& parameter, const Tensor& grad) {
    const auto found = std::ranges::find_if(parameters, [&](const Tensor& each) { return each.is_same(parameter); });
    if (found == parameters.end() || !grad.defined()) return;
    const auto p = static_cast<std::size_t>(found - parameters.begin());
    const Divided* const divided = divided_as(parameter);
    if (!divided) {
      squares[p] = square_of(grad);
      return;
    }
    const std::vector<Tensor> shards = divided->division.by_shard(grad, *shards_);
    for (std::size_t s = 0; s < by_shards.size(); ++s) by_shards[s][places[p]] = square_of(shards[s]);
  };
  if (visit)
    visit(take);
  else
    for (const Tensor& parameter : parameters) take(parameter, parameter.grad());
  if (count == 0) return squares;
  std::vector<Tensor> parts;
  for (const std::vector<double>& shard : by_shards) parts.push_back(tensor(shard));
  const std::vector<double> sums = shards_->sum(std::move(parts)).to_vector<double>();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (places[p] != kWhole) squares[p] = sums[places[p]];
  return squares;
}

double TensorParallel::sum_of_squares(const std::vector<Tensor>& parameters, const std::vector<double>& squares) const {
  double sum = 0.0;
  for (const bool of_divided : {false, true})
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if ((divided_as(parameters[p]) != nullptr) == of_divided) sum += squares[p];
  return sum;
}

double TensorParallel::clip_grad_norm(double max_norm, optim::Optimizer* optimizer) const {
  LOCKSTEP_CHECK(max_norm >= 0.0, "[TensorParallel] expected max_norm >= 0, found {}", max_norm);
  const NoGradGuard values_only;
  const std::vector<Tensor> parameters = module_.parameters();
  // A plain optimizer has nothing to add: the gradients are with the parameters, those of other optimizers too.
  const bool elsewhere = optim::detail::has_gradients_of(parameters, optim::detail::GradientsInParts::Kind::elsewhere);
  LOCKSTEP_CHECK(
      !elsewhere || optimizer,
      "[TensorParallel] a step has divided the gradients (zero = 2 or 3), so that parameters have none; call "
      "clip_grad_norm(max_norm, &optimizer) with the step's optimizer");
  VisitGradients visit;
  if (elsewhere) visit = [optimizer](const auto& take) { optimizer->visit_gradients(take); };
  const double norm = std::sqrt(sum_of_squares(parameters, gradient_squares(parameters, visit)));
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return norm;
  if (elsewhere)
    optimizer->multiply_gradients(factor);
  else
    for (const Tensor& parameter : parameters)
      if (const Tensor grad = parameter.grad(); grad.defined()) grad.mul_(factor);
  return norm;
}

}  // namespace lockstep::distributed
