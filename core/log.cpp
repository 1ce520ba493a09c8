#include "lockstep/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/core/environment.h"
#include "lockstep/core/fork_handlers.h"

namespace lockstep::logging {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::trace:
      return spdlog::level::trace;
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::optional<spdlog::level::level_enum> level_named(const std::string& name) {
  for (const auto& [known, level] : {std::pair("trace", spdlog::level::trace), std::pair("debug", spdlog::level::debug),
                                     std::pair("info", spdlog::level::info), std::pair("warn", spdlog::level::warn),
                                     std::pair("error", spdlog::level::err), std::pair("off", spdlog::level::off)})
    if (name == known) return level;
  return {};
}

struct Logger {
  Logger() : logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_pattern("%l: %v");
    const auto name = environment_variable("LOCKSTEP_LOG_LEVEL");
    const auto level = name ? level_named(*name) : std::optional(spdlog::level::warn);
    logger.set_level(level.value_or(spdlog::level::warn));
    static std::atomic<bool> told{false};  // also before this process was forked
    if (!level && !told.exchange(true))
      logger.warn("LOCKSTEP_LOG_LEVEL='{}' is ignored: expected trace, debug, info, warn, error or off", *name);
  }

  std::string current_prefix() {
    const std::lock_guard lock(mutex);
    return prefix;
  }

  spdlog::logger logger;
  std::mutex mutex;  // of the prefix
  std::string prefix;
};

// Never destroyed: threads may still log while the process exits.
std::atomic<Logger*>& the_logger() {
  static std::atomic<Logger*> logger{new Logger};
  return logger;
}

Logger& instance() {
  return *the_logger().load(std::memory_order_acquire);
}

// Another thread may hold the logger's own locks while the process forks, and will never let go of them in the child,
// which gets a logger of its own. It is made before the fork: what serves memory need not work in a child of several
// threads (that of Address Sanitizer does not). That the old one exists is certain then: the first use is not under way
// on another thread.
std::unique_ptr<Logger> childs;  // under the mutex of the prefix

void before_fork() {
  Logger& logger = instance();
  logger.mutex.lock();
  childs = std::make_unique<Logger>();
  childs->prefix = logger.prefix;
}
void in_parent() {
  const std::unique_ptr<Logger> unused = std::move(childs);
  instance().mutex.unlock();
}
void in_child() {
  instance().mutex.unlock();  // which nobody will use, but a lock held for ever is what deadlocks are looked for by
  the_logger().store(childs.release());
}
// A level that is none is told of also where nothing is logged.
[[maybe_unused]] const bool made_at_the_start = (instance(), true);
const ForkHandlers fork_handlers(before_fork, in_parent, in_child);

}  // namespace

bool enabled(Level level) {
  return instance().logger.should_log(to_spdlog(level));
}

void write(Level level, std::string_view message) {
  instance().logger.log(to_spdlog(level), "{}{}", instance().current_prefix(), message);
}

void set_prefix(std::string_view prefix) {
  const std::lock_guard lock(instance().mutex);
  instance().prefix = prefix;
}

}  // namespace lockstep::logging
