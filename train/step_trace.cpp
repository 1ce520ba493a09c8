#include "lockstep/train/step_trace.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"

namespace lockstep::training {
namespace {

nlohmann::ordered_json span(const std::string& name, int row, std::int64_t origin_ns, std::int64_t begin_ns,
                            std::int64_t end_ns) {
  return {{"name", name},
          {"ph", "X"},
          {"pid", 0},
          {"tid", row},
          {"ts", static_cast<double>(begin_ns - origin_ns) / 1e3},
          {"dur", static_cast<double>(end_ns - begin_ns) / 1e3}};
}

}  // namespace

void write_step_trace(const std::string& path, const distributed::ReducerTrace& trace,
                      const std::vector<distributed::OperationRecord>& records) {
  const std::int64_t origin = trace.first_gradient_ns;
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  events.push_back(span("backward (first to last gradient)", 0, origin, origin, trace.last_gradient_ns));
  events.push_back(span("wait for all-reduce", 0, origin, trace.last_gradient_ns, trace.finished_ns));
  for (std::size_t i = 0; i < trace.launched_ns.size(); ++i)
    events.push_back({{"name", fmt::format("bucket {} launched", i)},
                      {"ph", "i"},
                      {"s", "t"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", static_cast<double>(trace.launched_ns[i] - origin) / 1e3}});
  for (const distributed::OperationRecord& record : records)
    if (record.started_ns >= origin && record.finished_ns > 0 && record.started_ns <= trace.finished_ns)
      events.push_back(span(fmt::format("{} #{} {}", distributed::name(record.operation.kind), record.operation.number,
                                        to_string(record.input_sizes)),
                            1, origin, record.started_ns, record.finished_ns));
  std::ofstream out(path);
  out << nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(1) << '\n';
  out.close();
  LOCKSTEP_CHECK(!out.fail(), "the trace file '{}' could not be written; is the disk full?", path);
}

}  // namespace lockstep::training
