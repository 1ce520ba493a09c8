#pragma once

// To find the workers that a launcher has started.

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::testing {

/// Empty if it cannot be read, as what /proc holds of a process that has just gone.
inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();  // unlike an iterator over the buffer, this does not throw where reading fails
  return text.str();
}

/// The process that runs as this rank under the launcher `parent`; -1: none does now.
inline pid_t worker(pid_t parent, int rank) {
  pid_t found = -1;
  const std::string wanted = "RANK=" + std::to_string(rank);
  DIR* const proc = ::opendir("/proc");
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const std::string folder = "/proc/" + std::to_string(pid);
    const std::string stat = read_file(folder + "/stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || std::atoi(stat.c_str() + name_end + 4) != parent) continue;
    std::istringstream environment(read_file(folder + "/environ"));
    for (std::string variable; std::getline(environment, variable, '\0');)
      if (variable == wanted) found = pid;
  }
  ::closedir(proc);
  return found;
}

}  // namespace lockstep::testing
