// Groups of some of a group's ranks.

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"
#include "lockstep/distributed/process_group/disagreement.h"
#include "lockstep/distributed/process_group/executor.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed {

int ProcessGroup::job_rank(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < world_size(), "[job_rank] rank is {}; expected 0 to {}", rank, world_size() - 1);
  return options_.ranks.empty() ? rank : options_.ranks[static_cast<std::size_t>(rank)];
}

ProcessGroupPtr ProcessGroup::split(int color, int key) {
  static const OperationLabel label("split of the group");
  const LabelScope scope(label);
  const auto told = all_gather_integers(std::array{std::int64_t{color}, std::int64_t{key}}, *this);
  const std::uint64_t number = splits_++;
  if (color < 0) return nullptr;

  std::vector<int> members;
  for (int r = 0; r < world_size(); ++r)
    if (told[static_cast<std::size_t>(r)][0] == color) members.push_back(r);
  std::ranges::stable_sort(members, {}, [&](int r) { return told[static_cast<std::size_t>(r)][1]; });

  ProcessGroupOptions options = options_;
  options.rank = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  options.world_size = static_cast<int>(members.size());
  options.ranks.clear();
  for (const int r : members) options.ranks.push_back(job_rank(r));
  if (members.size() == 1) return make_single_process_group(options, shared_from_this());

  const auto scoped = [&](const char* what) -> StorePtr {
    if (!store_) return nullptr;
    return std::make_shared<PrefixStore>(fmt::format("split/{}/{}/{}", number, color, what), store_);
  };
  auto group = std::make_shared<ProcessGroup>(options, scoped("monitor"), shared_from_this());
  for (std::size_t type = 0; type < executors_.size(); ++type)
    if (const auto& executor = executors_[type])
      group->add(static_cast<DeviceType>(type),
                 executor->split({.group = *group, .members = members, .number = number, .store = scoped("backend")}));
  return group;
}

ProcessGroupPtr ProcessGroup::new_group(const std::vector<int>& ranks) {
  int place = -1;
  std::vector<bool> named(static_cast<std::size_t>(world_size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int r = ranks[i];
    LOCKSTEP_CHECK(r >= 0 && r < world_size(), "[new_group] a rank is {}; expected 0 to {}", r, world_size() - 1);
    LOCKSTEP_CHECK(!named[static_cast<std::size_t>(r)], "[new_group] rank {} is named twice; expected it once", r);
    named[static_cast<std::size_t>(r)] = true;
    if (r == rank()) place = static_cast<int>(i);
  }
  std::string list;
  for (const int r : ranks) list += (list.empty() ? "" : ", ") + std::to_string(r);
  if (const auto found = find_disagreement(list, *this))
    throw Error(
        fmt::format("[new_group] rank(s) {} were given other ranks than rank 0: {} on rank {}, and {} on rank 0; "
                    "give all ranks the same list, or call split(), which makes several groups at once",
                    found->ranks, found->of_other, found->other, found->of_rank0));
  return split(place < 0 ? -1 : 0, place);
}

}  // namespace lockstep::distributed
