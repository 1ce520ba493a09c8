#include "apps/lockstep_bisect/compare.h"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/json.h"

namespace lockstep::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Difference {
  std::string what;  // "the gradient of conv1.weight"
  std::string a, b;
};

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// The first value that differs, in the order of `a`'s names, then what only `b` has.
std::optional<Difference> first_difference(const Json& a, const Json& b, const std::string& of_what) {
  for (const auto& [name, value] : a.items()) {
    if (!b.contains(name)) return Difference{of_what + name, text_of(value), "missing"};
    if (b[name] != value) return Difference{of_what + name, text_of(value), text_of(b[name])};
  }
  for (const auto& [name, value] : b.items())
    if (!a.contains(name)) return Difference{of_what + name, "missing", text_of(value)};
  return std::nullopt;
}

std::optional<Difference> compare_steps(const Json& a, const Json& b) {
  if (a["loss_hex"] != b["loss_hex"]) return Difference{"the loss", text_of(a["loss_hex"]), text_of(b["loss_hex"])};
  if (auto found = first_difference(a["gradients"], b["gradients"], "the gradient of ")) return found;
  return first_difference(a["weights"], b["weights"], "the new value of ");
}

struct Trace {
  std::vector<std::string> runs;
  std::map<std::int64_t, Json> steps;
  std::string repeat;  // how a step differs from its earlier self; empty: none does
  bool cut = false;    // it ends in the middle of a line
};

Trace read(const std::string& path) {
  InputLines lines(path, "");
  Trace trace;
  for (std::string text; lines.next(text);) {
    Json line;
    try {
      line = parse_json<Json>(text, fmt::format("'{}', line {}:", path, lines.number()));
    } catch (const Error&) {
      if (!lines.at_end()) throw;
      trace.cut = true;  // of a run that was killed, or a file that was
      break;
    }
    if (line.contains("run")) {
      trace.runs.push_back(text_of(line["run"]));
      continue;
    }
    const bool complete = line.contains("step") && line["step"].is_number_integer() && line.contains("loss_hex") &&
                          line.contains("gradients") && line["gradients"].is_object() && line.contains("weights") &&
                          line["weights"].is_object();
    if (!complete)
      throw Error(fmt::format("'{}', line {}: this is no step of mnist_train --trace-hashes", path, lines.number()));
    const auto step = line["step"].get<std::int64_t>();
    const auto [known, is_new] = trace.steps.try_emplace(step, line);
    if (is_new || !trace.repeat.empty()) continue;
    if (const auto difference = compare_steps(known->second, line))
      trace.repeat = fmt::format("{} computed step {} twice with different bits: {} was {}, then {}", path, step,
                                 difference->what, difference->a, difference->b);
  }
  return trace;
}

/// What a trace holds and the other one does not, or ends in the middle of; empty: nothing.
std::string what_is_left(const char* name, const Trace& trace, const Trace& other) {
  std::string text;
  std::vector<std::int64_t> alone;
  for (const auto& [step, line] : trace.steps)
    if (!other.steps.contains(step)) alone.push_back(step);
  if (!alone.empty())
    text +=
        fmt::format("; {} alone has {} more step(s), from {} to {}", name, alone.size(), alone.front(), alone.back());
  if (trace.cut) text += fmt::format("; {} ends in the middle of a line", name);
  return text;
}

std::string describe_runs(const std::string& name, const Trace& trace) {
  std::string text;
  for (const std::string& run : trace.runs) text += fmt::format("\n  {}: {}", name, run);
  return text;
}

}  // namespace

Comparison compare_traces(const std::string& path_a, const std::string& path_b) {
  const Trace a = read(path_a);
  const Trace b = read(path_b);
  const std::string settings = a.runs == b.runs ? "" : describe_runs("A", a) + describe_runs("B", b);
  for (const Trace* trace : {&a, &b})
    if (!trace->repeat.empty()) return {false, trace->repeat + settings};
  std::int64_t compared = 0;
  for (const auto& [step, line] : a.steps) {
    const auto other = b.steps.find(step);
    if (other == b.steps.end()) continue;
    ++compared;
    if (const auto difference = compare_steps(line, other->second))
      return {false, fmt::format("first difference at step {}: {} is {} in A and {} in B ({} equal step(s) before)",
                                 step, difference->what, difference->a, difference->b, compared - 1) +
                         settings};
  }
  if (compared == 0) throw Error(fmt::format("'{}' and '{}' have no step in common", path_a, path_b));
  const std::string left = what_is_left("A", a, b) + what_is_left("B", b, a);
  return {!a.cut && !b.cut,
          fmt::format("equal{}: {} step(s), from {} to {}{}", left.empty() ? "" : " as far as both go", compared,
                      std::max(a.steps.begin()->first, b.steps.begin()->first),
                      std::min(a.steps.rbegin()->first, b.steps.rbegin()->first), left)};
}

}  // namespace lockstep::apps
