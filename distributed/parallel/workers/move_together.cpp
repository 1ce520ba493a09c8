#include "lockstep/distributed/parallel/workers/move_together.h"

#include <map>
#include <utility>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

namespace lockstep::distributed {

std::vector<Tensor> move_together(const std::vector<Tensor>& tensors, Device device) {
  using Kind = std::pair<DType, int>;  // and the device's index; -1: the CPU
  std::map<Kind, std::vector<std::size_t>> kinds;
  std::vector<Tensor> moved = tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].device() == device) continue;
    const Device from = tensors[i].device();
    kinds[{tensors[i].dtype(), from.is_cpu() ? -1 : from.index}].push_back(i);
  }
  for (const auto& [kind, indices] : kinds) {
    if (indices.size() == 1) {
      moved[indices[0]] = move_values(tensors[indices[0]], device);
      continue;
    }
    std::vector<std::int64_t> offsets;
    std::int64_t elements = 0;
    for (const std::size_t i : indices) {
      offsets.push_back(elements);
      elements += packed_elements(tensors[i].numel(), kind.first);
    }
    // Clang before 16 captures no structured binding that is not named.
    const auto part = [&, &indices = indices](const Tensor& packed, std::size_t place) {
      const Shape& sizes = tensors[indices[place]].sizes();
      return packed.as_strided(sizes, contiguous_strides(sizes), offsets[place]);
    };
    const Tensor here = empty({elements}, options_of(tensors[indices.front()]));
    for (std::size_t k = 0; k < indices.size(); ++k) copy_values(tensors[indices[k]], part(here, k));
    const Tensor there = move_values(here, device);
    for (std::size_t k = 0; k < indices.size(); ++k) moved[indices[k]] = part(there, k);
  }
  return moved;
}

}  // namespace lockstep::distributed
