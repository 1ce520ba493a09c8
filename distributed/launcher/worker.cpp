#include "lockstep/distributed/launcher/worker.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

#include "lockstep/core/process.h"

namespace lockstep::launcher {
namespace {

struct Started {
  pid_t pid;
  Pipe out;
  Pipe err;
};

/// True if the process has a handler for the signal: proc(5), "SigCgt", a bit for each signal. False where the kernel
/// does not tell.
bool catches(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;)
    if (std::uint64_t caught = 0; word == "SigCgt:" && status >> std::hex >> caught) return caught >> (signal - 1) & 1;
  return false;
}

Started start(const WorkerSpec& spec) {
  Started started{-1, spec.inherit_stdout ? Pipe() : make_pipe(), make_pipe()};
  const FileDescriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  started.pid = start_process({.program = spec.program,
                               .arguments = spec.arguments,
                               .environment = spec.environment,
                               .function = spec.function,
                               .in = null.get(),
                               .out = started.out.write.get(),
                               .err = started.err.write.get(),
                               .inherited = spec.inherited,
                               .ends_with_parent = true});
  started.out.write.reset();
  started.err.write.reset();
  for (const FileDescriptor* fd : {&started.out.read, &started.err.read})
    if (*fd) ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  return started;
}

}  // namespace

Worker::Worker(const WorkerSpec& spec, Outlets& outlets)
    : rank_(spec.rank),
      pid_(-1),
      out_(FileDescriptor(), outlets.out, "", FileDescriptor(), false),
      err_(FileDescriptor(), outlets.err, "", FileDescriptor(), false) {
  FileDescriptor out_log = open_log(spec.stdout_log, spec.truncate_logs);
  FileDescriptor err_log = open_log(spec.stderr_log, spec.truncate_logs);
  Started started = start(spec);
  pid_ = started.pid;
  out_ = Stream(std::move(started.out.read), outlets.out, spec.prefix, std::move(out_log), false);
  err_ = Stream(std::move(started.err.read), outlets.err, spec.prefix, std::move(err_log), true);
}

bool Worker::has_ended() const {
  if (!alive()) return false;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno == ECHILD;
  return info.si_pid == pid_;
}

bool Worker::has_stopped() {
  if (!alive()) return false;
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG) == 0 && info.si_pid == pid_;
}

void Worker::reap() {
  int status = 0;
  pid_t reaped;
  while ((reaped = ::waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  Ending ending;
  if (reaped == pid_) {
    ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    ending.exit_status = ending.signal ? 128 + ending.signal : WEXITSTATUS(status);
  } else {
    ending.unknown = true;
    ending.exit_status = 1;
  }
  ending_ = ending;
}

void Worker::signal(int signal) {
  if (alive()) ::kill(-pid_, signal);
}

void Worker::pass_on(int signal) const {
  if (alive() && catches(pid_, signal)) ::kill(pid_, signal);
}

}  // namespace lockstep::launcher
