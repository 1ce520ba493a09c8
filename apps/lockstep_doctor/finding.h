#pragma once

#include <string>
#include <vector>

namespace lockstep::doctor {

enum class Verdict {
  ok,
  note,    ///< works, or is absent, in a way worth knowing
  failed,  ///< jobs will not run, or not as asked
};

/// One line of the examination.
struct Finding {
  std::string area;  ///< "devices", "ports", ...
  std::string what;
  Verdict verdict = Verdict::ok;
  std::string found;
  std::string remedy = {};  ///< what to do; never empty for a failure
};

using Findings = std::vector<Finding>;

}  // namespace lockstep::doctor
