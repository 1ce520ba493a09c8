#include "lockstep/distributed/launcher/environment.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "lockstep/core/check.h"

namespace lockstep::launcher {

std::vector<std::string> to_strings(const Environment& environment) {
  std::vector<std::string> result;
  result.reserve(environment.size());
  for (const auto& [name, value] : environment) result.push_back(name + "=" + value);
  return result;
}

Environment worker_environment(Environment base, const Placement& placement) {
  if (!base.contains("LOCKSTEP_NUM_THREADS") && !base.contains("OMP_NUM_THREADS"))
    base["LOCKSTEP_NUM_THREADS"] = std::to_string(std::max(1, usable_cores() / placement.local_world_size));
  base["RANK"] = std::to_string(placement.rank);
  base["WORLD_SIZE"] = std::to_string(placement.world_size);
  base["LOCAL_RANK"] = std::to_string(placement.local_rank);
  base["LOCAL_WORLD_SIZE"] = std::to_string(placement.local_world_size);
  base["MASTER_ADDR"] = placement.master_addr;
  base["MASTER_PORT"] = std::to_string(placement.master_port);
  base["LOCKSTEP_TOKEN"] = placement.token;
  base["LOCKSTEP_STORE_HOSTED"] = "1";
  base["LOCKSTEP_FAILURE_PIPE"] = placement.failure_pipe;
  base["LOCKSTEP_RESTART_COUNT"] = std::to_string(placement.restart_count);
  base["LOCKSTEP_JOB_ID"] = placement.job;
  base["LOCKSTEP_ELASTIC"] = placement.elastic ? "1" : "0";
  return base;
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());  // more cores than cpu_set_t can name
}

std::string find_program(const std::string& program) {
  LOCKSTEP_CHECK(!program.empty(), "the program to start has an empty name");
  const auto is_program = [](const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) {
    LOCKSTEP_CHECK(is_program(program), "'{}' is not a program that can be started: {}", program,
                   ::access(program.c_str(), F_OK) != 0 ? "there is no such file" : "it is not an executable file");
    return program;
  }
  const char* path = std::getenv("PATH");
  std::string_view folders = path ? path : "/usr/local/bin:/usr/bin:/bin";
  while (true) {
    const auto colon = folders.find(':');
    const std::string_view folder = colon == 0 || folders.empty() ? "." : folders.substr(0, colon);
    const std::string candidate = fmt::format("{}/{}", folder, program);
    if (is_program(candidate)) return candidate;
    if (colon == std::string_view::npos) break;
    folders.remove_prefix(colon + 1);
  }
  LOCKSTEP_CHECK(false, "program '{}' was not found in PATH; give its path, such as ./{}", program, program);
  return {};
}

}  // namespace lockstep::launcher
