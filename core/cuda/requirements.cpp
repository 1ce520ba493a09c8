#include "lockstep/core/cuda/requirements.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "lockstep/core/check.h"

namespace lockstep::cuda {
namespace {

// The first driver of each major version of CUDA, which serves all of its minor ones.
int first_driver(int major) {
  return major >= 13 ? 580 : major == 12 ? 525 : 450;
}

bool runs(const std::string& architecture, int major, int minor) {
  std::size_t digits = 0;
  while (digits < architecture.size() && std::isdigit(static_cast<unsigned char>(architecture[digits])) != 0) ++digits;
  if (digits == 0 || digits > 4) return true;  // "native", "all"
  const int number = std::stoi(architecture.substr(0, digits));
  const std::string suffix = architecture.substr(digits);
  if (!suffix.empty() && suffix.front() != '-') return number == 10 * major + minor;
  const bool machine_code = suffix != "-virtual" && number / 10 == major && number % 10 <= minor;
  const bool ptx = suffix != "-real" && number <= 10 * major + minor;
  return machine_code || ptx;
}

}  // namespace

std::string explain_driver(int driver, int runtime) {
  const int major = runtime / 1000;
  const std::string needed = fmt::format("this build was made with CUDA {}.{}, which needs driver {} or later", major,
                                         runtime % 1000 / 10, first_driver(major));
  if (driver == 0) return "there is no CUDA driver; " + needed;
  return fmt::format("the CUDA driver serves CUDA {}.{} at most, and {}; update it, or build with CUDA {}",
                     driver / 1000, driver % 1000 / 10, needed, driver / 1000);
}

std::string explain_architecture(const std::string& architectures, int major, int minor) {
  std::string compiled;
  for (std::size_t begin = 0; begin <= architectures.size();) {
    const std::size_t end = std::min(architectures.find_first_of(";,", begin), architectures.size());
    const std::string one = architectures.substr(begin, end - begin);
    if (runs(one, major, minor)) return {};
    compiled += (compiled.empty() ? "" : ", ") + one;
    begin = end + 1;
  }
  return fmt::format(
      "its compute capability is {}.{}, and this build was made for {}; build with -DLOCKSTEP_CUDA_ARCHITECTURES={}{}",
      major, minor, compiled, major, minor);
}

}  // namespace lockstep::cuda
