#include "lockstep/core/profile_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lockstep/core/fork_handlers.h"

namespace lockstep::profile {
namespace {

thread_local constinit const char* module = nullptr;

struct Paths {
  std::mutex mutex;
  std::set<std::string> texts;
  std::unordered_map<const void*, const char*> modules;
};

Paths& paths() {
  static auto* instance = new Paths;  // never destroyed: threads may still run at exit
  return *instance;
}
const ForkHandlers fork_handlers([] { paths().mutex.lock(); }, [] { paths().mutex.unlock(); },
                                 [] { paths().mutex.unlock(); });

struct Row {
  std::int64_t calls = 0, ns = 0, bytes = 0;
  double flops = 0.0;
};
using Rows = std::map<std::pair<std::string, std::string>, Row>;

// Events of a thread nest: each is within the last one before it that has not ended.
void add_rows(Rows& rows, std::vector<TableEvent>& events) {
  std::erase_if(events, [](const TableEvent& event) { return !event.counted; });
  const auto end = [](const TableEvent& event) { return event.start_ns + event.duration_ns; };
  std::ranges::stable_sort(events, [&](const TableEvent& a, const TableEvent& b) {
    return std::tuple(a.start_ns, -a.duration_ns) < std::tuple(b.start_ns, -b.duration_ns);
  });
  struct Open {
    Row* row;
    std::int64_t end;
  };
  std::vector<Open> open;
  for (const TableEvent& event : events) {
    while (!open.empty() && open.back().end <= event.start_ns) open.pop_back();
    const std::string operation = event.label ? fmt::format("{} {}", event.name, event.label) : event.name;
    Row& row = rows[{event.module ? event.module : "-", operation}];
    ++row.calls;
    row.ns += event.duration_ns;
    row.bytes += event.bytes;
    row.flops += event.flops;
    if (!open.empty()) open.back().row->ns -= event.duration_ns;
    open.push_back({&row, end(event)});
  }
}

}  // namespace

const char* enter_module(const char* path) {
  return std::exchange(module, path);
}

const char* current_module() {
  return module;
}

const char* intern(const std::string& text) {
  const std::lock_guard lock(paths().mutex);
  return paths().texts.insert(text).first->c_str();
}

void remember_module(const void* thing) {
  const std::lock_guard lock(paths().mutex);
  if (module)
    paths().modules[thing] = module;
  else
    paths().modules.erase(thing);
}

const char* module_of(const void* thing) {
  const std::lock_guard lock(paths().mutex);
  const auto found = paths().modules.find(thing);
  return found == paths().modules.end() ? nullptr : found->second;
}

std::string make_table(std::vector<std::vector<TableEvent>> tracks, std::int64_t total_ns) {
  constexpr std::size_t kRows = 20;
  Rows rows;
  for (auto& events : tracks) add_rows(rows, events);
  if (rows.empty()) return {};
  std::vector<Rows::const_iterator> order;
  std::int64_t all_ns = 0;
  for (auto row = rows.cbegin(); row != rows.cend(); ++row) {
    order.push_back(row);
    all_ns += row->second.ns;
  }
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a->second.ns > b->second.ns; });
  const auto share = [&](std::int64_t ns) {
    return 100.0 * static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(total_ns, 1));
  };
  const auto line = [&](const std::string& module, const std::string& operation, std::int64_t calls, std::int64_t ns,
                        double flops, double bytes) {
    const auto rate = [ns](double amount) {
      return amount > 0 && ns > 0 ? fmt::format("{:.1f}", amount / static_cast<double>(ns)) : "-";
    };
    return fmt::format("{:<28} {:<36} {:>8} {:>11.3f} {:>6.1f} % {:>8} {:>7}\n", module, operation, calls,
                       static_cast<double>(ns) * 1e-6, share(ns), rate(flops), rate(bytes));
  };
  std::string out = fmt::format("{:<28} {:<36} {:>8} {:>11} {:>8} {:>8} {:>7}\n", "module", "operation", "calls", "ms",
                                "share", "GFLOP/s", "GB/s");
  Row rest;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& [key, row] = *order[i];
    if (i >= kRows) {
      rest.calls += row.calls;
      rest.ns += row.ns;
    } else {
      out += line(key.first, key.second, row.calls, row.ns, row.flops, static_cast<double>(row.bytes));
    }
  }
  if (order.size() > kRows) out += line("", fmt::format("{} others", order.size() - kRows), rest.calls, rest.ns, 0, 0);
  // Several threads may be in kernels at a time.
  if (total_ns > all_ns) out += line("", "outside of kernels", 0, total_ns - all_ns, 0, 0);
  return out;
}

}  // namespace lockstep::profile
