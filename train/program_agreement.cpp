// Which options of a program must be the same on all ranks.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/core/parse_number.h"
#include "lockstep/train/program_options.h"

namespace lockstep::training {
namespace {

/// The options of which each rank may have its own. An option that is not here, a new one too, is compared.
constexpr std::array<std::string_view, 23> kMayDiffer{
    // A rank's place, and how it gets there; what must fit there, the meeting of the ranks finds out.
    "--help", "--version", "--mode", "--device", "--devices", "--nproc", "--backend", "--init-method", "--rank",
    "--world-size", "--local-rank", "--timeout", "--threads",
    // Files, which are rank 0's business, and what a rank prints.
    "--checkpoint", "--keep-checkpoints", "--resume", "--save", "--metrics", "--trace", "--trace-hashes", "--profile",
    "--no-progress",
    // Kernels one by one give the bits of a graph.
    "--no-graph"};

/// Equal for equal numbers, however they are typed.
std::string canonical(const std::string& text) {
  const std::optional<double> number = parse_number<double>(text);
  return number ? fmt::format("{}", *number) : text;
}

/// The name as it is typed; CLI::Option::get_name() has none for those that help does not show.
std::string name_of(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return option.get_snames().empty() ? option.get_name(true) : "-" + option.get_snames().front();
}

}  // namespace

// An option that is given with its default is the same as one that is not given. Help shows defaults of some alone.
void Program::Options::note_defaults() {
  for (CLI::Option* const option : app.get_options()) {
    const std::string shown = option->get_default_str();
    option->capture_default_str();
    defaults_[name_of(*option)] = option->get_default_str();
    option->default_str(shown);
  }
}

nn::Metadata Program::Options::settings_of_ranks() const {
  nn::Metadata all;
  for (const CLI::Option* const option : app.get_options()) {
    const std::string name = name_of(*option);
    const bool may = std::ranges::find(kMayDiffer, name) != kMayDiffer.end() ||
                     std::ranges::find(may_differ, name) != may_differ.end() ||
                     std::ranges::any_of(outputs, [&](const OwnOutput& output) { return output.option == name; });
    if (may) continue;
    const std::string given =
        option->count() > 0 ? fmt::format("{}", fmt::join(option->results(), ",")) : defaults_.at(name);
    all[name] = given.empty() ? "not given" : canonical(given);
  }
  return all;
}

}  // namespace lockstep::training
