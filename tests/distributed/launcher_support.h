#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::launcher_test {

/// What a finished process left.
struct Finished {
  int status = -1;  ///< exit status; 128 + N for signal N
  std::string out;
  std::string err;
  double seconds = 0;
};

/// A child process with captured output. Killed in the destructor if it still runs.
class Process {
 public:
  Process(std::vector<std::string> command, const std::map<std::string, std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal);
  /// Reads its output until `text` has come on stdout. False at the deadline or the end.
  bool wait_for_output(const std::string& text, double seconds = 20);
  /// What has been read of its stdout so far.
  const std::string& output() const { return finished_.out; }
  /// Reads until both streams end, then reaps. A test failure at the deadline.
  Finished wait(double seconds = 30);

 private:
  bool pump(double seconds);

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  double started_;
  Finished finished_;
};

/// Runs `lockstep-run` with these arguments to its end.
Finished lockstep_run(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {});
/// The command line of lockstep-run with these arguments.
std::vector<std::string> lockstep_run_command(std::vector<std::string> arguments);

/// True if the process exists and is no zombie.
bool is_running(pid_t pid);
/// Waits until is_running() is false. True if that came before the deadline.
bool wait_until_gone(pid_t pid, double seconds = 10);
/// The lines of the text, in the order of the alphabet.
std::vector<std::string> sorted_lines(const std::string& text);
/// The number after each `key` in the text: numbers_after("pid=7 pid=8", "pid=") is {7, 8}.
std::vector<int> numbers_after(const std::string& text, const std::string& key);
/// True if `part` occurs in `text`; prints both otherwise.
::testing::AssertionResult has(const std::string& text, const std::string& part);

}  // namespace lockstep::launcher_test
