#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"
#include "lockstep/distributed/process_group/disagreement.h"

namespace lockstep::distributed {
namespace {

struct Dimension {
  std::string_view name;
  int MeshSizes::*size;
};

constexpr std::array<Dimension, 3> kDimensions{
    {{"data", &MeshSizes::data}, {"pipeline", &MeshSizes::pipeline}, {"tensor", &MeshSizes::tensor}}};

constexpr int kLargest = 1 << 20;

std::int64_t ranks_of(const MeshSizes& sizes) {
  std::int64_t ranks = 1;
  for (const auto& [name, size] : kDimensions) {
    LOCKSTEP_CHECK(sizes.*size >= 1 && sizes.*size <= kLargest, "[Mesh] {} is {}; expected 1 to {}", name, sizes.*size,
                   kLargest);
    ranks *= sizes.*size;
  }
  return ranks;
}

}  // namespace

MeshSizes parse_mesh(std::string_view text) {
  MeshSizes sizes;
  std::array<bool, kDimensions.size()> given{};
  for (std::string_view rest = text; !rest.empty() || text.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    const std::size_t equals = entry.find('=');
    std::size_t found = kDimensions.size();
    for (std::size_t i = 0; i < kDimensions.size(); ++i)
      if (equals != std::string_view::npos && entry.substr(0, equals) == kDimensions[i].name) found = i;
    const auto size = found < kDimensions.size() ? parse_number<int>(entry.substr(equals + 1)) : std::nullopt;
    const bool more = entry.size() < rest.size();
    rest.remove_prefix(entry.size() + (more ? 1 : 0));
    LOCKSTEP_CHECK(size && *size >= 1 && *size <= kLargest && !given[found] && !(more && rest.empty()),
                   "mesh '{}' has '{}'; expected sizes from 1 to {} such as data=2,pipeline=2,tensor=2, each name once",
                   text, entry, kLargest);
    given[found] = true;
    sizes.*kDimensions[found].size = *size;
  }
  return sizes;
}

std::string to_string(const MeshSizes& sizes) {
  return fmt::format("data={},pipeline={},tensor={}", sizes.data, sizes.pipeline, sizes.tensor);
}

Mesh::Mesh(const Job& job, MeshSizes sizes) : Mesh(job.process_group(), sizes) {}

Mesh::Mesh(ProcessGroupPtr world, MeshSizes sizes) : world_(std::move(world)), sizes_(sizes) {
  LOCKSTEP_CHECK(world_, "[Mesh] the process group is null");
  const std::int64_t ranks = ranks_of(sizes_);
  LOCKSTEP_CHECK(ranks == world_->world_size(),
                 "[Mesh] {} is for {} rank(s), and the job has {}; choose sizes whose product is {}",
                 distributed::to_string(sizes_), ranks, world_->world_size(), world_->world_size());
  const int rank = world_->rank();
  const auto found = find_disagreement(distributed::to_string(sizes_), *world_);
  LOCKSTEP_CHECK(!found, "[Mesh] rank {} was given {}, rank 0 {}; give all ranks the same sizes", found->other,
                 found->of_other, found->of_rank0);
  place_ = {.data = rank / (sizes_.tensor * sizes_.pipeline),
            .pipeline = rank / sizes_.tensor % sizes_.pipeline,
            .tensor = rank % sizes_.tensor};
  // A group's color is the rank of its first member.
  const auto part = [&](int MeshSizes::*dimension) {
    MeshSizes first = place_;
    first.*dimension = 0;
    return world_->split(rank_of(first), place_.*dimension);
  };
  data_ = part(&MeshSizes::data);
  pipeline_ = part(&MeshSizes::pipeline);
  tensor_ = part(&MeshSizes::tensor);
}

bool Mesh::all(bool mine) const {
  if (world_->world_size() == 1) return mine;
  const std::vector<std::int64_t> answers = all_gather_integers(mine ? 1 : 0, *world_);
  return std::ranges::count(answers, 0) == 0;
}

int Mesh::rank_of(const MeshSizes& position) const {
  for (const auto& [name, at] : kDimensions)
    LOCKSTEP_CHECK(position.*at >= 0 && position.*at < sizes_.*at, "[Mesh] {} {} is outside of {}", name, position.*at,
                   distributed::to_string(sizes_));
  return (position.data * sizes_.pipeline + position.pipeline) * sizes_.tensor + position.tensor;
}

}  // namespace lockstep::distributed
