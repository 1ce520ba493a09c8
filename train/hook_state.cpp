#include "lockstep/train/hook_state.h"

#include <charconv>
#include <map>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::training {
namespace {

// "hook.<rank>.<name>"
constexpr std::string_view kPrefix = "hook.";

std::string name_of(int rank, const std::string& name) {
  return fmt::format("{}{}.{}", kPrefix, rank, name);
}

using ByRank = std::map<int, std::string>;  // whole names

/// By the names that the hook gave.
std::map<std::string, ByRank> states_in(const nn::SafetensorsFile& file) {
  std::map<std::string, ByRank> all;
  for (const std::string& whole : nn::extra_tensors(file)) {
    if (!whole.starts_with(kPrefix)) continue;
    const char* const begin = whole.data() + kPrefix.size();
    int rank = -1;
    const auto number = std::from_chars(begin, whole.data() + whole.size(), rank);
    LOCKSTEP_CHECK(number.ec == std::errc() && *number.ptr == '.' && rank >= 0,
                   "'{}' is damaged: a tensor of its communication hook is called '{}'; resume from another checkpoint",
                   file.path(), whole);
    all[number.ptr + 1].emplace(rank, whole);
  }
  return all;
}

/// The values that are the same on all ranks stay as they are, to the bit.
Tensor mean(const nn::SafetensorsFile& file, const ByRank& names) {
  const Tensor first = nn::read_extra_tensor(file, names.begin()->second);
  if (!is_floating_point(first.dtype())) return first;
  const Tensor sum = copy_contiguous(first);
  bool same = true;
  for (auto each = std::next(names.begin()); each != names.end(); ++each) {
    const Tensor other = nn::read_extra_tensor(file, each->second);
    same = same && other.to_vector<double>() == first.to_vector<double>();
    sum.add_(other);
  }
  if (same) return first;
  sum.mul_(1.0 / static_cast<double>(names.size()));
  return sum;
}

}  // namespace

std::vector<nn::NamedTensor> gather_hook_state(const distributed::CommunicationHook& hook,
                                               distributed::ProcessGroup* group) {
  const NoGradGuard no_grad;
  std::vector<nn::NamedTensor> all;
  const int ranks = group ? group->world_size() : 1, own = group ? group->rank() : 0;
  for (const nn::NamedTensor& each : hook.state())
    for (int rank = 0; rank < ranks; ++rank) {
      const Tensor values = copy_contiguous(each.tensor);  // the others' are of the same shape
      if (group) group->broadcast(values, rank)->wait();
      if (own == 0) all.push_back({name_of(rank, each.name), move_values(values, Device(kCPU))});
    }
  return all;
}

bool load_hook_state(distributed::CommunicationHook& hook, const nn::SafetensorsFile& file,
                     const distributed::ProcessGroup* group) {
  const NoGradGuard no_grad;
  const int ranks = group ? group->world_size() : 1, own = group ? group->rank() : 0;
  std::vector<nn::NamedTensor> state;
  for (const auto& [name, names] : states_in(file)) {
    const auto mine = names.find(own);
    const bool as_saved = static_cast<int>(names.size()) == ranks && mine != names.end();
    state.push_back({name, as_saved ? nn::read_extra_tensor(file, mine->second) : mean(file, names)});
  }
  if (state.empty()) return false;
  hook.load_state(state);
  return true;
}

}  // namespace lockstep::training
