#include "lockstep/nn/optim/gradients_in_parts.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::optim::detail {
namespace {

std::mutex all_mutex;
std::multimap<const TensorImpl*, const GradientsInParts*>& all_parts() {
  static std::multimap<const TensorImpl*, const GradientsInParts*> all;
  return all;
}

}  // namespace

GradientsInParts::GradientsInParts(std::vector<Tensor> parameters, Kind kind, std::string message, Clear clear)
    : parameters_(std::move(parameters)), kind_(kind), message_(std::move(message)), clear_(std::move(clear)) {
  const std::lock_guard lock(all_mutex);
  for (const Tensor& parameter : parameters_) all_parts().emplace(parameter.impl(), this);
}

GradientsInParts::~GradientsInParts() {
  const std::lock_guard lock(all_mutex);
  std::erase_if(all_parts(), [this](const auto& each) { return each.second == this; });
}

void require_gradients(const std::vector<Tensor>& parameters, const char* function, GradientsInParts::Kind kind) {
  const std::lock_guard lock(all_mutex);
  if (all_parts().empty()) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto [first, last] = all_parts().equal_range(parameters[i].impl());
    const auto found = std::find_if(first, last, [&](const auto& each) { return each.second->kind_ == kind; });
    LOCKSTEP_CHECK(found == last, "[{}] parameter {} of shape {} {}", function, i, to_string(parameters[i].sizes()),
                   found->second->message_);
  }
}

bool has_gradients_of(const std::vector<Tensor>& parameters, GradientsInParts::Kind kind) {
  const std::lock_guard lock(all_mutex);
  return std::ranges::any_of(parameters, [kind](const Tensor& parameter) {
    const auto [first, last] = all_parts().equal_range(parameter.impl());
    return std::any_of(first, last, [kind](const auto& each) { return each.second->kind_ == kind; });
  });
}

void clear_gradients_elsewhere(const std::vector<Tensor>& parameters, bool set_to_none) {
  std::map<const GradientsInParts*, std::vector<Tensor>> found;
  {
    const std::lock_guard lock(all_mutex);
    if (all_parts().empty()) return;
    for (const Tensor& parameter : parameters) {
      const auto [first, last] = all_parts().equal_range(parameter.impl());
      for (auto each = first; each != last; ++each)
        if (each->second->clear_) found[each->second].push_back(parameter);
    }
  }
  for (const auto& [parts, theirs] : found) parts->clear_(theirs, set_to_none);
}

void require_whole_gradients(const std::vector<Tensor>& parameters, const char* function) {
  require_gradients(parameters, function, GradientsInParts::Kind::elsewhere);
  require_gradients(parameters, function, GradientsInParts::Kind::part);
  if (!has_gradients_of(parameters, GradientsInParts::Kind::own)) return;
  const auto is_own = [](const Tensor& each) { return has_gradients_of({each}, GradientsInParts::Kind::own); };
  if (!std::ranges::all_of(parameters, is_own)) require_gradients(parameters, function, GradientsInParts::Kind::own);
}

}  // namespace lockstep::optim::detail
