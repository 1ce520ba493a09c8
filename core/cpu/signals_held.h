#pragma once

// For .cpp files only.

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace lockstep::cpu {

/// Note [Signals and oneDNN]
/// While it lives, no signal handler runs on this thread; faults still come. oneDNN's generated products of matrices
/// use the stack pointer for their work space, which lies on the heap. A handler that runs meanwhile, ours or the
/// program's, has its frame written there, over whatever lies below: other tensors, or malloc's own data. Signals that
/// come meanwhile are delivered afterwards. Costs two system calls.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigfillset(&held);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&held, fault);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep::cpu
