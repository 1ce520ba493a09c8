#include <array>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/nn/container.h"

namespace lockstep::distributed {
namespace {

constexpr std::array<std::pair<std::string_view, PipelineSchedule>, 4> kSchedules{
    {{"gpipe", PipelineSchedule::gpipe},
     {"1f1b", PipelineSchedule::one_forward_one_backward},
     {"interleaved", PipelineSchedule::interleaved},
     {"zero-bubble", PipelineSchedule::zero_bubble}}};

}  // namespace

PipelineSchedule parse_pipeline_schedule(std::string_view text) {
  for (const auto& [name, schedule] : kSchedules)
    if (name == text) return schedule;
  throw Error(
      fmt::format("there is no pipeline schedule '{}'; expected gpipe, 1f1b, interleaved or zero-bubble", text));
}

std::string to_string(PipelineSchedule schedule) {
  for (const auto& [name, each] : kSchedules)
    if (each == schedule) return std::string(name);
  return "?";
}

std::vector<PipelineLayer> pipeline_layers(const nn::Sequential& chain) {
  std::vector<PipelineLayer> layers;
  for (std::size_t i = 0; i < chain.size(); ++i) layers.push_back({std::to_string(i), {&chain[i]}});
  return layers;
}

}  // namespace lockstep::distributed
