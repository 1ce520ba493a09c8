#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// Base of every exception the library throws. `what()` is one line that names the thing, what was expected, what was
/// found and, where there is one, the remedy.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken invariant of the library itself: a bug to report, never the user's fault.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// A wait that passed its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
