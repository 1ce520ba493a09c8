#include "lockstep/distributed/parallel/reduction/unused_warning.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/core/log.h"

namespace lockstep::distributed {

void warn_of_unused_parameters(const std::vector<std::string>& names, std::size_t total, std::uint64_t step) {
  constexpr std::size_t kNamed = 5;
  const auto shown = names.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, names.size()));
  logging::warn(
      "[TrainingStep] no rank used {} of {} parameters in step {}: {}{}; they have no gradient and keep their values "
      "(said once; "
      "see unused_everywhere())",
      names.size(), total, step, fmt::join(names.begin(), shown, ", "), names.size() > kNamed ? ", ..." : "");
}

}  // namespace lockstep::distributed
