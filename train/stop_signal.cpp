#include "lockstep/train/stop_signal.h"

namespace lockstep::train {
namespace {

volatile std::sig_atomic_t stop_came = 0;

void note_stop(int) {
  stop_came = 1;
}

}  // namespace

StopSignal::StopSignal(bool active) : active_(active) {
  if (!active_) return;
  stop_came = 0;
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &before_);
}

StopSignal::~StopSignal() {
  if (active_) ::sigaction(SIGTERM, &before_, nullptr);
}

bool StopSignal::came() const {
  return active_ && stop_came != 0;
}

}  // namespace lockstep::train
