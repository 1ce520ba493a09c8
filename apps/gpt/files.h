#pragma once

// Whole files. For .cpp files only.

#include <string>
#include <string_view>

namespace lockstep::gpt {

/// Throws Error naming `what` and the path if it cannot be read.
std::string read_file(const std::string& path, const char* what);
/// The file appears complete or not at all. Throws Error naming the path.
void write_file(const std::string& path, std::string_view content);

}  // namespace lockstep::gpt
