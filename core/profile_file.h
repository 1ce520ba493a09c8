#pragma once

// For .cpp files only.

#include <string>

namespace lockstep::profile {

/// Where a profile is written that was started with `path`: see Note [Profile].
std::string file_name(std::string path);

}  // namespace lockstep::profile
