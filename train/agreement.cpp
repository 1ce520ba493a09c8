#include "lockstep/train/agreement.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::training {
namespace {

constexpr double kPeriod = 0.2;  // seconds between two exchanges
constexpr std::int64_t kMostSteps = 1000;

std::string beginning(const std::string& value) {
  constexpr std::size_t kShown = 150;
  return value.size() <= kShown ? value : fmt::format("{}... ({} bytes)", value.substr(0, kShown), value.size());
}

}  // namespace

void check_same_settings(const nn::Metadata& mine, distributed::ProcessGroup& group) {
  static const distributed::OperationLabel label("comparison of the settings");
  const distributed::LabelScope scope(label);
  // In a form that takes any bytes.
  std::vector<std::uint8_t> bytes;
  if (group.rank() == 0) bytes = nlohmann::json::to_cbor(nlohmann::json(mine));
  const std::string of_rank0 = group.broadcast_object({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto theirs = nlohmann::json::from_cbor(of_rank0).get<nn::Metadata>();
  nn::Metadata all_names = mine;
  all_names.insert(theirs.begin(), theirs.end());
  const auto value_of = [](const nn::Metadata& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("none") : found->second;
  };
  std::string difference;
  for (const auto& [name, value] : all_names)
    if (const std::string own = value_of(mine, name), other = value_of(theirs, name);
        own != other && difference.empty())
      difference =
          fmt::format("; rank {} has {} {}, rank 0 has {}", group.rank(), name, beginning(own), beginning(other));

  // Every rank tells the first difference: the one that is heard may be any, as the first to end ends the others.
  const std::vector<std::string> all = group.all_gather_object(difference);
  std::string ranks, first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    if (first.empty()) first = all[rank];
  }
  LOCKSTEP_CHECK(ranks.empty(), "[run] rank(s) {} were started with other settings than rank 0{}; pass all the same",
                 ranks, first);
}

Agreement::Decision Agreement::after_step(bool stop, bool save_is_due) {
  if (!group_) return {stop, save_is_due};
  if (++steps_ < interval_) return {};
  const bool is_rank0 = group_->rank() == 0;
  const double seconds = std::chrono::duration<double>(Clock::now() - last_).count();
  const double fitting = kPeriod * static_cast<double>(steps_) / std::max(seconds, 1e-9);
  // A step that turns out longer must not be one of many: the interval at most doubles.
  const auto next =
      static_cast<std::int64_t>(std::clamp(fitting, 1.0, static_cast<double>(std::min(2 * interval_, kMostSteps))));

  static const distributed::OperationLabel label("whether to stop or to save");
  const distributed::LabelScope scope(label);
  const Tensor numbers = tensor({std::int64_t{stop}, std::int64_t{is_rank0 && save_is_due}, is_rank0 ? next : 0});
  group_->all_reduce(numbers, distributed::ReduceOp::max)->wait();
  const std::int64_t* agreed = numbers.data<std::int64_t>();
  steps_ = 0;
  interval_ = agreed[2];
  last_ = Clock::now();
  return {agreed[0] != 0, agreed[1] != 0};
}

}  // namespace lockstep::training
