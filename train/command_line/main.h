#pragma once

#include <exception>
#include <new>
#include <string>
#include <typeinfo>

#include "lockstep/core/error.h"
#include "lockstep/core/standard_streams.h"

namespace lockstep::command_line {

/// A wrong command line: exit status 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A flag that this build or machine cannot serve: "--backend nccl is not available in this build: ...". Status 2.
/// `where`: "machine" or "build".
[[noreturn]] void throw_not_available(const std::string& flag, const std::string& where, const std::string& why);

/// Runs the body of a program's main(), which returns the exit status. An exception becomes one line on stderr,
/// "PROGRAM: message", and the exit status: 2 for UsageError, 1 for everything else. So does a success of which stdout
/// did not take all, as on a full disk.
template <typename Body>
int run_main(const char* program, Body&& body);

/// The status of a program that has done its work: 1, after a line on stderr, if what it printed to stdout could not
/// all be written.
int status_of_success(const char* program);

/// Writes "PROGRAM: message" as one line to stderr.
void print_error(const char* program, const std::string& message);

template <typename Body>
int run_main(const char* program, Body&& body) {
  try {
    keep_standard_streams_open(StandIn::refuses);
    const int status = body();
    return status == 0 ? status_of_success(program) : status;
  } catch (const UsageError& error) {
    print_error(program, error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    print_error(program, "out of memory; free some, or raise the limit of the process (ulimit -v) or the container");
    return 1;
  } catch (const std::exception& error) {
    print_error(program, *error.what() == '\0' ? std::string("an exception without a message: ") + typeid(error).name()
                                               : error.what());
    return 1;
  } catch (...) {
    print_error(program, "an exception that is no std::exception; throw one, which can say what is wrong");
    return 1;
  }
}

}  // namespace lockstep::command_line
