#pragma once

#include <string>
#include <vector>

#include "distributed/launcher/unique_fd.h"

namespace lockstep::launcher {

/// What ranks that end by their own doing say of it, in the order of time; see Note [Whose failure] in
/// distributed/process_group/tell_launcher.h. For one group of workers.
class FailureReports {
 public:
  FailureReports();

  /// The value of LOCKSTEP_FAILURE_PIPE for the workers.
  std::string place() const;
  /// To be inherited by the workers under its number.
  int descriptor() const { return pipe_.write.get(); }

  struct Report {
    int rank = -1;  ///< -1: there is none
    std::string text;
  };
  /// The first that there is.
  Report first();

 private:
  Pipe pipe_;
  std::string received_;
};

}  // namespace lockstep::launcher
