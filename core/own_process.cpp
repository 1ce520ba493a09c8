#include "lockstep/core/own_process.h"

#include <unistd.h>

#include <vector>

namespace lockstep {

OwnProcess::OwnProcess() : process_(::getpid()) {}

bool OwnProcess::is_here() const {
  return ::getpid() == process_;
}

void keep_for_ever(std::shared_ptr<void> object) {
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  kept->push_back(std::move(object));
}

}  // namespace lockstep
