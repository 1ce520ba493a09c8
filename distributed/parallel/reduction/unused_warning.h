#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// A line on stderr that names the parameters, of all that a model trains, which no rank used in step `step`. Once for
/// a model in a process, however many steps are made of it: models whose parameters have the same names count as one.
void warn_of_unused_parameters(const std::vector<std::string>& names, const std::vector<nn::NamedTensor>& trained,
                               std::uint64_t step);

}  // namespace lockstep::distributed
