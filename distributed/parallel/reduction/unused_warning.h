#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::distributed {

/// A line on stderr that names parameters which no rank used, of `total`, in step `step`.
void warn_of_unused_parameters(const std::vector<std::string>& names, std::size_t total, std::uint64_t step);

}  // namespace lockstep::distributed
