#pragma once

#include <string>
#include <vector>

#include "lockstep/core/posix.h"

namespace lockstep::launcher {

/// What ranks say of their failures, in the order of time; see Note [Whose failure] in
/// distributed/failure/tell_launcher.h. For one group of workers.
class FailureReports {
 public:
  FailureReports();

  /// The value of LOCKSTEP_FAILURE_PIPE for the workers.
  std::string place() const;
  /// To be inherited by the workers under its number.
  int descriptor() const { return pipe_.write.get(); }

  struct Report {
    int rank = 0;
    bool own = false;  ///< false: it fails because of another rank
    std::string text;
  };
  /// Those that have come by now.
  const std::vector<Report>& read();

 private:
  Pipe pipe_;
  std::string received_;
  std::vector<Report> reports_;
};

}  // namespace lockstep::launcher
