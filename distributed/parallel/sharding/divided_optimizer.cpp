// What a ZeroRedundancyOptimizer does on a division's flats.

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/workers/ranks.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kBlock = cpu::kElementBlock;

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<optim::Optimizer> whole, TrainingStep& step,
                                                 std::size_t chunk_bytes)
    : local_(std::move(whole)) {
  LOCKSTEP_CHECK(step.ranks_,
                 "[ZeroRedundancyOptimizer] the step trains in one process; expected one with a job or a "
                 "group, over whose ranks to divide");
  LOCKSTEP_CHECK(
      step.ignored_modules().empty() || step.ranks_->group().world_size() == 1,
      "[ZeroRedundancyOptimizer] the module '{}' is each rank's own (ignored_modules), and the optimizer's state "
      "would be divided over ranks that have other parameters; leave one of them out, or make one of the shared "
      "parameters alone with the group, and a plain optimizer of the others",
      step.ignored_modules().front());
  group_ = step.ranks_->group().shared_from_this();
  division_ = step.ranks_->division();
  set_up(chunk_bytes);
  if (division_) ++division_->optimizers;
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() {
  if (division_) --division_->optimizers;
}

void ZeroRedundancyOptimizer::divide_by_flats() {
  places_.assign(parameters().size(), kNone);
  for (std::size_t i = 0; i < parameters().size(); ++i)
    for (std::size_t p = 0; p < division_->trained; ++p)
      if (division_->parameters[p].tensor.is_same(parameters()[i])) places_[i] = p;
  std::vector<std::size_t> optimizers(division_->parameters.size(), kNone);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    LOCKSTEP_CHECK(places_[i] != kNone || !parameters()[i].requires_grad() || parameters()[i].numel() == 0,
                   "[ZeroRedundancyOptimizer] parameter {} of shape {} is none that the step trains; pass those of its "
                   "module()",
                   i, to_string(parameters()[i].sizes()));
    if (places_[i] != kNone) optimizers[places_[i]] = i;
  }
  for (std::size_t f = 0; f < division_->trained_flats; ++f) {
    const Flat& flat = division_->flats[f];
    Group group{flat.options.dtype, flat.options.device, {}, flat.offsets, {{0, flat.elements(), flat.block}}, f};
    for (const std::size_t p : flat.members) group.members.push_back(optimizers[p]);
    const auto [first, last] = division_->own_range(flat);
    const std::vector<Piece> mine = pieces_in(group, first, last);
    own_.insert(own_.end(), mine.begin(), mine.end());
    groups_.push_back(std::move(group));
  }
}

bool ZeroRedundancyOptimizer::has_gradient(std::size_t parameter) const {
  return places_[parameter] != kNone && division_->has_gradient[places_[parameter]];
}

void ZeroRedundancyOptimizer::lend_flats() {
  if (division_->values_too) {
    const auto shards = division_->shards.lock();
    LOCKSTEP_CHECK(shards,
                   "[ZeroRedundancyOptimizer] the step that has divided the parameters (zero = 3) is gone, and with it "
                   "what this optimizer would change; make a step, and an optimizer with it");
    shards->check_divided();
  }
  for (std::size_t k = 0; k < own_.size(); ++k) {
    const Piece& piece = own_[k];
    const Flat& flat = division_->flats[piece.flat];
    const std::int64_t at = piece.at - division_->own_range(flat).first;
    nn::replace_value(shares_[k], division_->values_too
                                      ? elements_of(flat.shard, at, piece.size)
                                      : elements_of(parameters()[piece.parameter], piece.begin, piece.size));
    const bool has = flat.gradient.defined() && has_gradient(piece.parameter);
    shares_[k].set_grad(has ? elements_of(flat.gradient, at, piece.size) : Tensor());
  }
}

bool ZeroRedundancyOptimizer::scale_gradients(double factor) {
  if (!division_) return Optimizer::scale_gradients(factor);
  const NoGradGuard no_grad;
  lend_flats();
  const bool finite = local_->scale_gradients(factor);
  for (const Tensor& share : shares_) share.set_grad({});
  static const OperationLabel label("whether gradients are finite");
  const LabelScope scope(label);
  const Tensor all = tensor({std::int64_t{finite}}, parameters().front().device());
  group_->all_reduce(all, ReduceOp::min)->wait();
  return all.item<std::int64_t>() != 0;
}

void ZeroRedundancyOptimizer::visit_gradients(
    const std::function<void(const Tensor& parameter, const Tensor& grad)>& take) const {
  if (!division_) return Optimizer::visit_gradients(take);
  const NoGradGuard no_grad;
  std::vector<bool> visited(division_->trained, false);  // by parameter of the division
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (has_gradient(i)) visited[places_[i]] = true;
  for (std::size_t f = 0; f < division_->trained_flats; ++f) {
    const Flat& flat = division_->flats[f];
    if (flat.block == 0 || std::ranges::none_of(flat.members, [&](std::size_t p) { return visited[p]; })) continue;
    const LabelScope label(flat.label);
    Tensor all = flat.gradient.defined() ? flat.gradient : zeros({flat.block}, flat.options);
    if (division_->world > 1) {
      const Tensor own = all;
      all = empty({flat.block * division_->world}, flat.options);
      group_->all_gather(all, own)->wait();
    }
    for (std::size_t m = 0; m < flat.members.size(); ++m) {
      const Tensor& parameter = division_->parameters[flat.members[m]].tensor;
      if (visited[flat.members[m]])
        take(parameter, elements_of(all, flat.offsets[m], parameter.numel()).view(parameter.sizes()));
    }
  }
}

void ZeroRedundancyOptimizer::multiply_gradients(double factor) {
  if (!division_) return Optimizer::multiply_gradients(factor);
  const NoGradGuard no_grad;
  lend_flats();
  for (const Tensor& share : shares_) {
    if (Tensor grad = share.grad(); grad.defined()) grad.mul_(factor);
    share.set_grad({});
  }
}

// What the blocks of the group's parameters add up to, on every rank.
void ZeroRedundancyOptimizer::add_up_squares(const Group& group, std::vector<std::vector<double>>& sums) const {
  using BlockOf = std::pair<std::size_t, std::int64_t>;  // parameter, number
  std::map<BlockOf, std::int64_t> cut;                   // blocks that several ranks have, and their places
  std::map<std::size_t, std::int64_t> place;             // of a parameter's first block
  std::int64_t size = 0;
  for (const std::size_t i : group.members)
    if (i != kNone && !sums[i].empty())
      place[i] = std::exchange(size, size + static_cast<std::int64_t>(sums[i].size()));
  if (size == 0) return;
  for (int r = 1; r < group_->world_size(); ++r) {
    const std::int64_t at = std::min(r * group.chunks.front().block, group.offsets.back());
    for (const Piece& piece : pieces_in(group, at, std::min(at + 1, group.offsets.back())))
      if (place.contains(piece.parameter) && piece.begin % kBlock != 0 &&
          cut.emplace(BlockOf{piece.parameter, piece.begin / kBlock}, size).second)
        size += kBlock;
  }

  const Tensor mine = zeros({size}, {.dtype = kFloat64});
  double* const out = mine.data<double>();
  for (std::size_t k = 0; k < own_.size(); ++k) {
    const Piece& piece = own_[k];
    if (piece.flat != group.flat || !shares_[k].grad().defined()) continue;
    const Tensor grad = move_values(shares_[k].grad(), Device(kCPU));
    const std::int64_t begin = piece.begin / kBlock, end = (piece.begin + piece.size + kBlock - 1) / kBlock;
    parallel_for(end - begin, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t b = begin + from; b < begin + to; ++b) {
        const std::int64_t first = std::max(b * kBlock, piece.begin);
        const std::int64_t last = std::min((b + 1) * kBlock, piece.begin + piece.size);
        const Tensor part = elements_of(grad, first - piece.begin, last - first);
        if (const auto found = cut.find({piece.parameter, b}); found != cut.end())
          copy_values(part, elements_of(mine, found->second + first - b * kBlock, last - first));
        else
          out[place.at(piece.parameter) + b] = optim::detail::sum_of_squares(part);
      }
    });
  }
  const Tensor all = move_values(mine, group.device);
  group_->all_reduce(all)->wait();
  const Tensor whole = move_values(all, Device(kCPU));
  for (const auto& [i, at] : place)
    for (std::size_t b = 0; b < sums[i].size(); ++b) {
      const auto found = cut.find({i, static_cast<std::int64_t>(b)});
      const std::int64_t length = std::min(kBlock, parameters()[i].numel() - static_cast<std::int64_t>(b) * kBlock);
      sums[i][b] = found == cut.end() ? whole.data<double>()[at + static_cast<std::int64_t>(b)]
                                      : optim::detail::sum_of_squares(elements_of(whole, found->second, length));
    }
}

// The sum of squares goes over blocks of a parameter, whoever has them, and then along the blocks and parameters, as
// optim::grad_norm() does on the CPU. Blocks that several ranks have parts of come together before.
std::vector<double> ZeroRedundancyOptimizer::squares_of_own() const {
  static const OperationLabel label("norm of the gradients");
  const LabelScope scope(label);
  std::vector<std::vector<double>> sums(parameters().size());  // by parameter and block
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (has_gradient(i)) sums[i].resize(static_cast<std::size_t>((parameters()[i].numel() + kBlock - 1) / kBlock));
  for (const Group& group : groups_) add_up_squares(group, sums);
  std::vector<double> squares(parameters().size(), 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i)
    for (const double block : sums[i]) squares[i] += block;
  return squares;
}

std::vector<double> ZeroRedundancyOptimizer::gradient_squares(const std::vector<Tensor>& of) {
  if (!division_) return optim::detail::gradient_squares(of);
  const NoGradGuard no_grad;
  lend_flats();
  const std::vector<double> own = squares_of_own();
  for (const Tensor& share : shares_) share.set_grad({});
  std::vector<double> squares(of.size(), 0.0);
  for (std::size_t i = 0; i < of.size(); ++i)
    for (std::size_t k = 0; k < own.size(); ++k)
      if (parameters()[k].is_same(of[i])) squares[i] = own[k];
  return squares;
}

optim::GradNorm ZeroRedundancyOptimizer::clip_grad_norm_(double max_norm, bool error_if_nonfinite) {
  if (!division_) return Optimizer::clip_grad_norm_(max_norm, error_if_nonfinite);
  return distributed::clip_grad_norm_({*this}, max_norm, error_if_nonfinite);
}

optim::GradNorm ZeroRedundancyOptimizer::scale_to_norm(double norm, double max_norm, bool error_if_nonfinite) {
  if (division_) lend_flats();
  const optim::GradNorm result =
      optim::detail::scale_to_norm(optim::detail::gradients_by_device(division_ ? shares_ : parameters()),
                                   tensor<double>({norm, max_norm / (norm + 1e-6)}), error_if_nonfinite);
  if (division_)
    for (const Tensor& share : shares_) share.set_grad({});
  return result;
}

void ZeroRedundancyOptimizer::clip_grad_value_(double limit) {
  if (!division_) return Optimizer::clip_grad_value_(limit);
  const NoGradGuard no_grad;
  lend_flats();
  optim::clip_grad_value_(shares_, limit);
  for (const Tensor& share : shares_) share.set_grad({});
}

optim::GradNorm clip_grad_norm_(const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                double max_norm, bool error_if_nonfinite) {
  using optim::detail::GradientsInParts;
  LOCKSTEP_CHECK(!optimizers.empty(), "[clip_grad_norm_] expected at least one optimizer, found none");
  LOCKSTEP_CHECK(max_norm >= 0.0, "[clip_grad_norm_] expected max_norm >= 0, found {}", max_norm);
  const NoGradGuard no_grad;
  double square = 0.0;
  for (optim::Optimizer& each : optimizers) {
    auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&each);
    const bool divided = sharded && sharded->division_;
    optim::detail::require_gradients(each.parameters(), "clip_grad_norm_", GradientsInParts::Kind::part);
    if (!divided)
      optim::detail::require_gradients(each.parameters(), "clip_grad_norm_", GradientsInParts::Kind::elsewhere);
    if (divided) sharded->lend_flats();
    for (const double of_one : divided ? sharded->squares_of_own() : optim::detail::gradient_squares(each.parameters()))
      square += of_one;
    if (divided)
      for (const Tensor& share : sharded->shares_) share.set_grad({});
  }
  const double norm = std::sqrt(square);
  for (optim::Optimizer& each : optimizers)
    if (auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&each))
      sharded->scale_to_norm(norm, max_norm, error_if_nonfinite);
    else
      optim::detail::scale_to_norm(optim::detail::gradients_by_device(each.parameters()),
                                   tensor<double>({norm, max_norm / (norm + 1e-6)}), error_if_nonfinite);
  return optim::GradNorm(tensor<double>({norm}));
}

}  // namespace lockstep::distributed
