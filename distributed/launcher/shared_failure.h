#pragma once

#include <string>

namespace lockstep::launcher {

/// Why a generation of workers ended, as every launcher sees it.
struct SharedFailure {
  enum class Kind {
    failed,
    node_lost,      ///< the node's launcher is gone, and tells nobody anything
    node_returned,  ///< no failure: the group is formed again with a node more
  };

  int node = 0;
  int exit_status = 1;
  std::string text;
  Kind kind = Kind::failed;
};

/// As text for the store, and back. Throws Error for text that is none.
std::string encode(const SharedFailure& failure);
SharedFailure decode_failure(const std::string& text);

}  // namespace lockstep::launcher
