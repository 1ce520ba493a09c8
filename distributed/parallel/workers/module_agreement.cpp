#include "lockstep/distributed/parallel/workers/module_agreement.h"

#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/distributed/process_group/disagreement.h"

namespace lockstep::distributed {
namespace {

// The values were divided by a step, and are of nobody now.
bool is_lost(const Tensor& parameter) {
  return parameter.storage()->is_pending() && parameter.storage()->computation()->is_elsewhere();
}

// One line for each tensor.
std::string describe_state(const SharedState& state) {
  std::string text;
  for (const auto& [name, tensor] : state.parameters)
    text += fmt::format("parameter {} {} {}{}{}\n", name, lockstep::name(tensor.dtype()), to_string(tensor.sizes()),
                        tensor.requires_grad() ? "" : " (frozen)",
                        is_lost(tensor) ? " (divided by a step that is gone)" : "");
  for (const auto& [name, tensor] : state.buffers)
    text += fmt::format("buffer {} {} {}\n", name, lockstep::name(tensor.dtype()), to_string(tensor.sizes()));
  return text;
}

// The same of options. A rank may accumulate over slices of its own number.
std::string describe_options(const TrainingStepOptions& options) {
  std::string text = fmt::format(
      "zero = {}\nlogical_shards = {}\nhook = {}\nstatic_graph = {}\n"
      "broadcast_buffers = {}\nfirst_bucket_bytes = {}\nbucket_bytes = {}\n"
      "gather_dtype = {}\ngather_within = {}\n",
      options.zero, options.logical_shards, options.hook ? options.hook->name() : "none", options.static_graph,
      options.broadcast_buffers, options.first_bucket_bytes, options.bucket_bytes, lockstep::name(options.gather_dtype),
      options.gather_within);
  for (const std::string& unit : options.shard_units) text += "shard_units has " + unit + "\n";
  return text;
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

std::string first_difference(const std::string& text, int rank, const std::string& of_rank0) {
  const std::vector<std::string> a = lines_of(text);
  const std::vector<std::string> b = lines_of(of_rank0);
  for (std::size_t i = 0;; ++i) {
    const std::string x = i < a.size() ? a[i] : "nothing";
    const std::string y = i < b.size() ? b[i] : "nothing";
    if (x != y) return fmt::format("entry {} is {} on rank {} and {} on rank 0", i, x, rank, y);
  }
}

void compare(const SharedState& state, const TrainingStepOptions& options, ProcessGroup& group, const char* who) {
  static const OperationLabel label("comparison of the modules");
  const LabelScope scope(label);
  struct Compared {
    std::string text;
    const char* what;
    const char* remedy;
  };
  const Compared both[] = {{describe_options(options), "choice of options", "pass the same options on every rank"},
                           {describe_state(state), "model", "build the same model on every rank"}};
  for (const auto& [text, what, remedy] : both)
    if (const auto found = find_disagreement(text, group)) {
      const std::string detail = found->of_rank0 == text
                                     ? first_difference(found->of_other, found->other, found->of_rank0)
                                     : first_difference(text, group.rank(), found->of_rank0);
      throw Error(fmt::format("[{}] the {} of rank(s) {} differs from rank 0's: {}; {}", who, what, found->ranks,
                              detail, remedy));
    }
}

}  // namespace

void check_agreement(const SharedState& state, const TrainingStepOptions& options, ProcessGroup& group,
                     const char* who) {
  compare(state, options, group, who);
  for (const auto& [name, tensor] : state.parameters)
    LOCKSTEP_CHECK(!is_lost(tensor),
                   "[TrainingStep] the values of parameter '{}' were divided over ranks by a step that is gone (zero = "
                   "3); hold its whole_parameters() on all ranks while it ends, or make the model anew",
                   name);
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
