#include "lockstep/distributed/parallel/reduction/unused_warning.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

#include "lockstep/core/log.h"

namespace lockstep::distributed {

namespace {

/// True the first time that it is asked of such a model.
bool is_new(const std::vector<nn::NamedTensor>& trained) {
  static std::mutex mutex;
  static std::set<std::size_t> told;
  std::size_t hash = trained.size();
  for (const nn::NamedTensor& parameter : trained) hash = hash * 31 + std::hash<std::string>{}(parameter.name);
  const std::lock_guard lock(mutex);
  return told.insert(hash).second;
}

}  // namespace

void warn_of_unused_parameters(const std::vector<std::string>& names, const std::vector<nn::NamedTensor>& trained,
                               std::uint64_t step) {
  if (!is_new(trained)) return;
  constexpr std::size_t kNamed = 5;
  const auto shown = names.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, names.size()));
  logging::warn(
      "[TrainingStep] no rank used {} of {} parameters in step {}: {}{}; they have no gradient and keep their values "
      "(said once; see unused_everywhere())",
      names.size(), trained.size(), step, fmt::join(names.begin(), shown, ", "), names.size() > kNamed ? ", ..." : "");
}

}  // namespace lockstep::distributed
