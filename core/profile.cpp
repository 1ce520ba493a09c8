#include "lockstep/core/profile.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/fork_handlers.h"
#include "lockstep/core/log.h"
#include "lockstep/core/profile_file.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/profile_modules.h"
#include "lockstep/core/tensor.h"

namespace lockstep {
namespace profile {

namespace detail {
constinit std::atomic<bool> recording{false};

struct Event {
  const char* category;
  const char* name;
  const char* label;
  std::int64_t start_ns, duration_ns;
  std::int64_t bytes;
  std::string shapes;
  const char* module;
  double flops;
  Event* outer;  ///< while it is open: the event around it
};
}  // namespace detail

namespace {

using detail::Event;

constexpr std::size_t kMaxEvents = 1 << 20;  // of one thread

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Events of one thread. It outlives the thread: what a thread did is written though it has ended.
struct Track {
  std::mutex mutex;
  int number = 0;
  std::vector<Event> events;
  std::size_t dropped = 0;
};

struct Recorder {
  std::mutex mutex;
  std::string path;
  pid_t owner = 0;
  std::int64_t origin_ns = 0;
  bool prints = false;  ///< the table at the end: the environment asked for the profile
  std::vector<std::unique_ptr<Track>> tracks;
};

Recorder& recorder() {
  static auto* instance = new Recorder;  // never destroyed: threads may still run at exit
  return *instance;
}

void lock_all() {
  recorder().mutex.lock();
  for (const auto& track : recorder().tracks) track->mutex.lock();
}
void unlock_all() {
  for (const auto& track : recorder().tracks) track->mutex.unlock();
  recorder().mutex.unlock();
}
const ForkHandlers fork_handlers(lock_all, unlock_all, unlock_all);

thread_local constinit Track* own_track = nullptr;
thread_local constinit const char* innermost = nullptr;
thread_local constinit Event* open_event = nullptr;

Track& track() {
  if (!own_track) {
    Recorder& all = recorder();
    const std::lock_guard lock(all.mutex);
    all.tracks.push_back(std::make_unique<Track>());
    own_track = all.tracks.back().get();
    own_track->number = static_cast<int>(all.tracks.size()) - 1;
  }
  return *own_track;
}

}  // namespace

std::string file_name(std::string path) {
  if (const auto at = path.find("%p"); at != std::string::npos) {
    path.replace(at, 2, std::to_string(getpid()));
  } else if (const auto rank = environment_variable("RANK")) {
    const auto slash = path.rfind('/'), dot = path.rfind('.');
    const bool extension = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
    path.insert(extension ? dot : path.size(), ".rank" + *rank);
  }
  return path;
}

namespace {

void append(std::string& out, const Event& event, std::int64_t origin_ns, pid_t process, int thread) {
  const auto micros = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  fmt::format_to(
      std::back_inserter(out),
      ",\n{{\"name\":\"{}{}{}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},\"tid\":{}",
      event.name, event.label ? " " : "", event.label ? event.label : "", event.category,
      micros(event.start_ns - origin_ns), micros(event.duration_ns), process, thread);
  std::string arguments;
  if (!event.shapes.empty()) arguments = fmt::format(",\"shapes\":\"{}\",\"bytes\":{}", event.shapes, event.bytes);
  if (event.flops > 0) arguments += fmt::format(",\"flops\":{:.0f}", event.flops);
  if (event.module) arguments += fmt::format(",\"module\":\"{}\"", event.module);
  if (!arguments.empty()) fmt::format_to(std::back_inserter(out), ",\"args\":{{{}}}", arguments.substr(1));
  out += '}';
}

struct Taken {
  std::string json, table;  ///< empty if there are no events
};

// Takes all events.
Taken take_events() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  const pid_t process = getpid();
  std::string out;
  std::vector<std::vector<TableEvent>> table;
  for (const auto& track : all.tracks) {
    const std::lock_guard track_lock(track->mutex);
    if (track->events.empty()) continue;
    fmt::format_to(
        std::back_inserter(out),
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"thread {}\"}}}}",
        process, track->number, track->number);
    std::vector<TableEvent>& rows = table.emplace_back();
    for (const Event& event : track->events) {
      append(out, event, all.origin_ns, process, track->number);
      const std::string_view category = event.category;
      rows.push_back({event.module, event.name, event.label, category == "kernel" || category == "optimizer",
                      event.start_ns, event.duration_ns, event.bytes, event.flops});
    }
    if (track->dropped > 0)
      logging::warn("the profile of thread {} is cut after {} events; {} are missing", track->number, kMaxEvents,
                    track->dropped);
    track->events.clear();
    track->dropped = 0;
  }
  if (out.empty()) return {};
  return {"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + out.substr(1) + "\n]}\n",
          make_table(std::move(table), now_ns() - all.origin_ns)};
}

void write_file(const std::string& path, const std::string& text) {
  try {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    file.commit();
  } catch (const Error& error) {
    lockstep::detail::throw_error(fmt::format("[profile] '{}' cannot be written: {}", path, error.what()));
  }
}

void write_at_exit() {
  try {
    stop_profile();
  } catch (const std::exception& error) {
    logging::error("{}", error.what());
  }
}

// Recording begins before main() if the environment asks for it.
[[maybe_unused]] const bool started_by_environment = [] {
  const auto path = environment_variable("LOCKSTEP_PROFILE");
  if (!path) return false;
  start_profile(*path);
  recorder().prints = true;
  std::atexit(write_at_exit);
  return true;
}();

}  // namespace

void Scope::begin(const char* category, const char* name) {
  event_ = new Event{category, name, nullptr, 0, 0, 0, {}, current_module(), 0.0, open_event};
  open_event = event_;
  outer_ = innermost;
  innermost = name;
  event_->start_ns = now_ns();
}

void Scope::end() noexcept {
  const std::unique_ptr<Event> event(event_);
  event->duration_ns = now_ns() - event->start_ns;
  innermost = outer_;
  open_event = event->outer;
  if (!enabled()) return;
  try {
    Track& to = track();
    const std::lock_guard lock(to.mutex);
    if (to.events.size() < kMaxEvents)
      to.events.push_back(std::move(*event));
    else
      ++to.dropped;
  } catch (const std::bad_alloc&) {
    // The event is lost; what it measured is not.
  }
}

void Scope::add(const Shape& shape) {
  if (!event_->shapes.empty()) event_->shapes += ' ';
  event_->shapes += to_string(shape);
  event_->start_ns = now_ns();  // the text is no part of what is measured
}

void Scope::add(const Tensor& tensor) {
  if (!tensor.defined()) return;
  event_->bytes += static_cast<std::int64_t>(tensor.nbytes());
  add(tensor.sizes());
}

void Scope::set_label(const char* label) {
  event_->label = label;
}

void add_flops_of_event(double flops) {
  if (open_event) open_event->flops += flops;
}

const char* current_name() {
  return innermost;
}

}  // namespace profile

void start_profile(std::string path) {
  LOCKSTEP_CHECK(!path.empty(), "[profile] expected the name of a file, found an empty one");
  profile::detail::recording.store(false);
  profile::take_events();
  profile::Recorder& all = profile::recorder();
  const std::lock_guard lock(all.mutex);
  all.path = std::move(path);
  all.prints = false;
  all.owner = getpid();
  all.origin_ns = profile::now_ns();
  profile::detail::recording.store(true);
}

void stop_profile() {
  if (!profile::detail::recording.exchange(false)) return;
  profile::Recorder& all = profile::recorder();
  if (all.owner != getpid()) return;  // a forked child
  const profile::Taken taken = profile::take_events();
  if (taken.json.empty()) return;
  profile::write_file(profile::file_name(all.path), taken.json);
  if (all.prints && !taken.table.empty()) std::fputs(taken.table.c_str(), stderr);
}

}  // namespace lockstep
