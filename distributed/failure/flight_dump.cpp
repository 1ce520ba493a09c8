#include "lockstep/distributed/failure/flight_dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"
#include "lockstep/core/posix.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/failure/flight_dump_writer.h"

namespace lockstep::distributed {
namespace {

constexpr int kFatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};

// What the handlers read: plain memory, made before.
std::array<std::atomic<const FlightRecorder*>, 64> recorders;
int installed_in = -1;             // the process whose list that is
std::array<char, 4096> dump_path;  // empty: no LOCKSTEP_DUMP_DIR
int request_pipe[2] = {-1, -1};
std::atomic<bool> dying = false;

// Makes remove() wait for a dump that another thread is writing on request.
std::mutex& recorders_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// The file in LOCKSTEP_DUMP_DIR; -1 and errno if it cannot be had. What is no regular file is another's: a pipe, at
/// which a rank that fails would wait for ever, or a link to who knows where. Called in handlers too.
int open_dump(const char* path) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  struct stat info {};
  if (file < 0 || (::fstat(file, &info) == 0 && S_ISREG(info.st_mode))) return file;
  ::close(file);
  errno = EEXIST;
  return -1;
}

void write_to(const FileDescriptor& file, const std::string& path, const FlightRecorder& recorder,
              std::string_view reason) {
  bool written = false;
  {
    DumpWriter out(file.get());
    write_header(out, recorder, reason);
    for (const OperationRecord& record : recorder.records()) write_record(out, recorder.rank(), record);
    written = out.flush();
  }
  LOCKSTEP_CHECK(written, "the operations cannot be dumped to '{}': the disk may be full", path);
}

/// Into LOCKSTEP_DUMP_DIR, which is set.
void dump_or_warn(const FlightRecorder& recorder, std::string_view reason) {
  try {
    const std::string path = dump_path.data();
    const FileDescriptor file(open_dump(path.c_str()));
    LOCKSTEP_CHECK(file, "the operations cannot be dumped to '{}': {}", path,
                   errno == EEXIST || errno == ENXIO || errno == ELOOP ? "something that is no file has this name"
                                                                       : std::strerror(errno));
    write_to(file, path, recorder, reason);
  } catch (const std::exception& error) {
    logging::warn("{}", error.what());
  }
}

const char* signal_name(int number) {
  switch (number) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGABRT:
      return "SIGABRT";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGUSR1";
  }
}

/// "rank 2 (process 4711) SIGSEGV: at step 41, in all_reduce #17 (bucket 2: fc1.weight)".
void write_short_report(DumpWriter& out, int rank, const char* reason, const OperationRecord* last) {
  out.text("lockstep: rank ").integer(rank).text(" (process ").integer(::getpid()).text(") ").text(reason);
  if (last) {
    const OperationInfo& operation = last->operation;
    if (operation.step >= 0) out.text(" at step ").integer(operation.step);
    using State = OperationRecord::State;
    out.text(last->state == State::started || last->state == State::queued ? " in " : " after ");
    out.text(name(operation.kind)).text(" #").integer(static_cast<std::int64_t>(operation.number));
    if (!operation.label.empty()) out.text(" (").text(operation.label.text()).text(")");
  } else {
    out.text(" before its first operation");
  }
  if (dump_path[0] != 0) out.text("; its last operations are in ").text(dump_path.data());
  out.text("\n");
}

extern "C" void on_fatal_signal(int number) {
  if (!dying.exchange(true)) {
    const int file = dump_path[0] != 0 ? open_dump(dump_path.data()) : -1;
    for (const auto& slot : recorders) {
      const FlightRecorder* const recorder = slot.load();
      if (!recorder) continue;
      const OperationRecord* last = nullptr;
      recorder->visit_unlocked([&](const OperationRecord& record) { last = &record; });
      DumpWriter err(STDERR_FILENO);
      write_short_report(err, recorder->rank(), signal_name(number), last);
      if (file < 0) continue;
      DumpWriter out(file);
      write_header(out, *recorder, signal_name(number));
      recorder->visit_unlocked([&](const OperationRecord& record) { write_record(out, recorder->rank(), record); });
    }
    if (file >= 0) ::close(file);
  }
  ::raise(number);  // the default action again; it comes when this handler returns
}

extern "C" void on_request_signal(int) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(request_pipe[1], "", 1);
  errno = error;
}

void serve_requests() {
  for (char byte = 0;;) {
    const ssize_t n = ::read(request_pipe[0], &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    const std::lock_guard lock(recorders_mutex());
    bool any = false;
    for (const auto& slot : recorders) {
      const FlightRecorder* const recorder = slot.load();
      if (!recorder) continue;
      any = true;
      const std::vector<OperationRecord> records = recorder->records();
      {
        DumpWriter err(STDERR_FILENO);
        write_short_report(err, recorder->rank(), "SIGUSR1", records.empty() ? nullptr : &records.back());
      }
      if (dump_path[0] != 0) dump_or_warn(*recorder, "SIGUSR1");
    }
    if (!any)
      DumpWriter(STDERR_FILENO)
          .text("lockstep: process ")
          .integer(::getpid())
          .text(" SIGUSR1, is in no process group\n");
  }
}

/// Sets a handler where the program has none.
void handle(int number, void (*handler)(int), int flags) {
  struct sigaction current {};
  if (::sigaction(number, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

void choose_path(int rank) {
  const auto folder = environment_variable("LOCKSTEP_DUMP_DIR");
  if (!folder) return;
  std::error_code error;
  std::filesystem::create_directories(*folder, error);
  const std::string path = fmt::format("{}/rank{}.{}.jsonl", *folder, rank, ::getpid());
  if (!std::filesystem::is_directory(*folder, error) || path.size() >= dump_path.size()) {
    logging::warn("LOCKSTEP_DUMP_DIR={} is no folder and cannot be made one; nothing is dumped", *folder);
    return;
  }
  dump_path[path.copy(dump_path.data(), path.size())] = 0;
}

/// Once in a process; again in a forked child, which has the handlers but neither the thread nor a file of its own. The
/// caller holds the mutex.
void install_once(int rank) {
  if (installed_in == ::getpid()) return;
  installed_in = ::getpid();
  for (auto& slot : recorders) slot = nullptr;
  dump_path[0] = 0;
  request_pipe[0] = request_pipe[1] = -1;  // a parent's; who forked may have closed them, and used the numbers again
  choose_path(rank);
  for (const int number : kFatal) handle(number, on_fatal_signal, static_cast<int>(SA_RESETHAND));
  if (::pipe2(request_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  ::fcntl(request_pipe[0], F_SETFL, 0);  // the reader waits; the handler never does
  // No handler of the program's runs in this thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  start_thread("requests of the last operation", serve_requests).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  handle(SIGUSR1, on_request_signal, SA_RESTART);
}

}  // namespace

void FlightDumps::answer_requests() {
  const std::lock_guard lock(recorders_mutex());
  install_once(0);
}

void FlightDumps::add(const FlightRecorder& recorder) {
  const std::lock_guard lock(recorders_mutex());
  install_once(recorder.rank());
  for (auto& slot : recorders) {
    if (slot.load()) continue;
    slot = &recorder;
    return;
  }
}

void FlightDumps::remove(const FlightRecorder& recorder) {
  // A forked child has the parent's list, whose lock may be held for ever, and no thread that reads it.
  std::unique_lock lock(recorders_mutex(), std::defer_lock);
  if (installed_in == ::getpid()) lock.lock();
  for (auto& slot : recorders)
    if (slot.load() == &recorder) slot = nullptr;
}

void FlightDumps::write_after_failure(const FlightRecorder& recorder, std::string_view reason) {
  if (dump_path[0] != 0) dump_or_warn(recorder, reason);
}

void write_flight_dump(const std::string& path, const FlightRecorder& recorder, std::string_view reason) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  LOCKSTEP_CHECK(file, "the operations cannot be dumped to '{}': {}", path, std::strerror(errno));
  write_to(file, path, recorder, reason);
}

}  // namespace lockstep::distributed
