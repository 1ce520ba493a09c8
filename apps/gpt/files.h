#pragma once

// A whole file. For .cpp files only.

#include <string>
#include <string_view>

namespace lockstep::gpt {

/// The file appears complete or not at all. Throws Error naming the path.
void write_file(const std::string& path, std::string_view content);

}  // namespace lockstep::gpt
