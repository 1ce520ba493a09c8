#pragma once

#include <memory>
#include <utility>

// Note [Another process's objects]
// fork() copies objects, but not the threads that serve them; sockets, locks on files and shared memory stay the
// parent's. A child that unwinds, or returns from main(), runs their destructors, where nobody answers to join(), a
// condition variable waits for waiters that are not there, a lock may be held for ever, and what says farewell on a
// connection or in shared memory speaks for the parent. So whoever owns such things remembers its process. In another
// one its destructor leaves them as they are, until that process ends.

namespace lockstep {

/// The process that an object was made in.
class OwnProcess {
 public:
  /// Of this process.
  OwnProcess();
  /// False in a child that was forked since, which has a copy of the object.
  bool is_here() const;
  int number() const { return process_; }

 private:
  int process_;
};

/// The object is never destroyed. For the only thread of a forked child.
void keep_for_ever(std::shared_ptr<void> object);
/// The same of what unique_ptrs and shared_ptrs own.
template <typename... Pointers>
void leave_for_ever(Pointers&... pointers) {
  (keep_for_ever(std::shared_ptr<void>(std::move(pointers))), ...);
}

}  // namespace lockstep
