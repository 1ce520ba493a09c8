#include "lockstep/distributed/parallel/workers/module_agreement.h"

#include <cstring>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

// One line for each tensor.
std::string describe_state(const nn::Module& module) {
  std::string text;
  for (const auto& [name, tensor] : module.named_parameters())
    text += fmt::format("parameter {} {} {}{}\n", name, lockstep::name(tensor.dtype()), to_string(tensor.sizes()),
                        tensor.requires_grad() ? "" : " (frozen)");
  for (const auto& [name, tensor] : module.named_buffers())
    text += fmt::format("buffer {} {} {}\n", name, lockstep::name(tensor.dtype()), to_string(tensor.sizes()));
  return text;
}

std::int64_t fnv1a(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return static_cast<std::int64_t>(hash);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string first_difference(const std::string& here, const std::string& there) {
  const std::vector<std::string> a = lines_of(here);
  const std::vector<std::string> b = lines_of(there);
  for (std::size_t i = 0;; ++i) {
    const std::string x = i < a.size() ? a[i] : "nothing";
    const std::string y = i < b.size() ? b[i] : "nothing";
    if (x != y) return fmt::format("entry {} is {} here and {} on rank 0", i, x, y);
  }
}

}  // namespace

void check_module_agreement(const nn::Module& module, ProcessGroup& group) {
  static const OperationLabel label("comparison of the modules");
  const LabelScope scope(label);
  if (group.world_size() == 1) return;
  const std::string text = describe_state(module);
  // The device of the module is one the group can work on.
  const Device device = module.device();
  const Tensor mine = tensor({fnv1a(text), static_cast<std::int64_t>(text.size())}, device);
  const Tensor all = empty({2 * group.world_size()}, options_of(mine));
  group.all_gather(all, mine)->wait();
  const std::vector<std::int64_t> seen = all.to_vector<std::int64_t>();
  std::string differing;
  for (int r = 1; r < group.world_size(); ++r) {
    const auto i = static_cast<std::size_t>(2 * r);
    if (seen[i] != seen[0] || seen[i + 1] != seen[1])
      differing += fmt::format("{}{}", differing.empty() ? "" : ", ", r);
  }
  if (differing.empty()) return;

  Tensor first = empty({seen[1]}, {.dtype = kUInt8});
  if (group.rank() == 0) std::memcpy(first.raw_data(), text.data(), text.size());
  first = move_values(first, device);
  group.broadcast(first, 0)->wait();
  const Tensor host = move_values(first, Device(kCPU));
  const std::string theirs(static_cast<const char*>(host.raw_data()), static_cast<std::size_t>(host.numel()));
  const std::string detail =
      theirs == text ? "" : fmt::format("; on rank {}, {}", group.rank(), first_difference(text, theirs));
  throw Error(fmt::format(
      "[DistributedDataParallel] the model of rank(s) {} differs from rank 0's{}; build the same model on every rank",
      differing, detail));
}

FrozenParameters::FrozenParameters(const nn::Module& module) {
  for (nn::NamedTensor& parameter : module.named_parameters())
    if (!parameter.tensor.requires_grad()) parameters_.push_back(std::move(parameter));
}

void FrozenParameters::check() const {
  for (const auto& [name, tensor] : parameters_)
    LOCKSTEP_CHECK(!tensor.requires_grad(),
                   "[TrainingStep] parameter '{}' did not require gradients when the DistributedDataParallel or "
                   "TrainingStep was made, and does now: its gradients would stay apart; make a new one after "
                   "unfreezing parameters",
                   name);
}

}  // namespace lockstep::distributed
