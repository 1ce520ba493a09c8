// What the ranks of one training must have alike.

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/process_group/disagreement.h"
#include "lockstep/train/run_state.h"

namespace lockstep::training {

nn::Metadata Run::State::settings_of_ranks() {
  nn::Metadata all = settings();
  // A sampler that divides the samples may go with a share of them on each rank.
  if (const auto& sampler = loader.options().sampler; sampler && sampler->world_size() > 1)
    for (const char* const name : {detail::kSamples, detail::kContent}) all.erase(name);
  all["epochs"] = std::to_string(options.epochs);
  all["max_steps"] = std::to_string(options.max_steps);
  all["lockstep"] = std::to_string(options.logical_shards);
  // Where the file goes is rank 0's business; all ranks take part in writing one, or none does.
  all["checkpoint"] = options.checkpoint.empty() ? "no file" : "a file";
  all["checkpoint_async"] = options.checkpoint_async ? "on" : "off";
  all["checkpoint_every"] = std::to_string(options.checkpoint_every);
  all["checkpoint_minutes"] = fmt::format("{}", options.checkpoint_minutes);
  all["optimizer"] = optimizer.name();
  if (schedule) {
    // The rates of some steps, all over the training; a program's options are compared too.
    constexpr std::int64_t kPlaces = 16;
    const std::int64_t before = schedule->position(), last = std::max<std::int64_t>(total_steps - 1, 0);
    for (std::int64_t i = 0; i <= kPlaces; ++i) {
      schedule->set_position(i == kPlaces ? last : last / kPlaces * i);
      for (std::size_t group = 0; group < optimizer.num_param_groups(); ++group)
        all[fmt::format("learning rate of group {}, step {:08}", group, schedule->position())] =
            fmt::format("{}, momentum {}", optimizer.lr(group), optimizer.momentum(group));
    }
    schedule->set_position(before);
  }
  for (std::size_t group = 0; group < optimizer.num_param_groups(); ++group) {
    all[fmt::format("learning rate of group {}", group)] = fmt::format("{}", optimizer.lr(group));
    all[fmt::format("momentum of group {}", group)] = fmt::format("{}", optimizer.momentum(group));
  }
  if (evaluation) all["samples of the evaluation"] = std::to_string(evaluation->dataset->size());
  if (!evaluation_content.empty()) all["samples of the evaluation, by checksum"] = evaluation_content;
  return all;
}

void Run::State::check_order(std::int64_t epoch) {
  if (!group || group->world_size() == 1) return;
  static const distributed::OperationLabel label("comparison of an epoch's order");
  const distributed::LabelScope scope(label);
  std::string text = "the loader's own";
  if (const auto& sampler = loader.options().sampler; sampler && sampler->world_size() > 1) {
    text = "a share";
  } else if (sampler) {
    const std::vector<std::int64_t> order = sampler->indices(static_cast<std::uint64_t>(epoch));
    text = checksum_digits(order.data(), order.size() * sizeof(std::int64_t));
  }
  const auto found = distributed::find_disagreement(text, *group);
  LOCKSTEP_CHECK(
      !found,
      "[run] the sampler gives rank(s) {} another order of epoch {} than rank 0, so that samples would be "
      "taken twice or not at all; its indices() must depend on the epoch alone, or its world_size() say that "
      "each rank has its own",
      found->ranks, epoch);
}

void Run::State::check_weights() {
  const bool divided = options.mesh || dynamic_cast<distributed::ZeroRedundancyOptimizer*>(&optimizer);
  if (!group || group->world_size() == 1 || options.logical_shards == 0 || divided || checked_at == done) return;
  checked_at = done;
  static const distributed::OperationLabel label("comparison of the weights");
  const distributed::LabelScope scope(label);
  const NoGradGuard values_only;
  std::string sums;
  for (const nn::NamedTensor& each : step.module().state()) {
    const Tensor values = as_contiguous(each.tensor.detach().to(kCPU));
    sums += checksum_digits(static_cast<const std::uint8_t*>(values.raw_data()), values.nbytes());
  }
  const auto found = distributed::find_disagreement(sums, *group);
  LOCKSTEP_CHECK(
      !found,
      "[run] after step {} the weights of rank(s) {} are not those of rank 0, as in lockstep mode they must be: since "
      "the last comparison something else was computed there (a callback that changes one rank's weights, learning "
      "rate or rounding mode, a broken memory). Nothing is saved; go on from the last checkpoint with --resume auto, "
      "and find the step by --trace-hashes and lockstep-bisect",
      done, found->ranks);
}

void Run::State::meet_at_stop() {
  if (!stopping || stopped_by != 0 || done >= total_steps || !group || std::exchange(met_at_stop, true)) return;
  static const distributed::OperationLabel label("run.stop(), which every rank must call after the same step");
  const distributed::LabelScope scope(label);
  group->barrier()->wait();
}

}  // namespace lockstep::training
