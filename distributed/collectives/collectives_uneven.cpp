// Collectives to which each rank gives, and from which it takes, sizes of its own.

#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/collectives/collectives_call.h"

namespace lockstep::distributed {
namespace {

constexpr std::uint64_t kSizeStep = 0, kBlockStep = 1;

}  // namespace

void Collectives::exchange_uneven(const Call& call) {
  const Operation& operation = call.operation;
  const bool gathers = operation.kind == OperationKind::all_gather_uneven;
  const auto world = static_cast<std::size_t>(world_size_), me = static_cast<std::size_t>(rank_);
  // Of each rank: bytes to it and from it, and where they begin.
  std::vector<std::uint64_t> to(world), from(world), told(world);
  std::vector<std::size_t> to_begin(world), from_begin(world);
  std::size_t to_at = 0, from_at = 0;
  for (std::size_t r = 0; r < world; ++r) {
    to[r] = gathers ? operation.input.nbytes() : static_cast<std::size_t>(operation.input_counts[r]) * call.element();
    from[r] = static_cast<std::size_t>(operation.output_counts[r]) * call.element();
    to_begin[r] = std::exchange(to_at, gathers ? 0 : to_at + to[r]);
    from_begin[r] = std::exchange(from_at, from_at + from[r]);
  }

  const auto given = [&](int r) { return call.input_block(r, to_begin[static_cast<std::size_t>(r)]); };
  const auto taken = [&](int r) { return call.output_block(r, from_begin[static_cast<std::size_t>(r)]); };
  // The size is part of a block's tag: a block of another size than expected lands nowhere.
  const auto block_step = [](std::uint64_t bytes) { return kBlockStep + bytes; };
  Requests sizes, blocks;
  for (int i = 1; i < world_size_; ++i) {
    const int source = (rank_ - i + world_size_) % world_size_, target = (rank_ + i) % world_size_;
    const auto s = static_cast<std::size_t>(source), t = static_cast<std::size_t>(target);
    post_recv(sizes, call, kSizeStep, source, &told[s], sizeof told[s]);
    post_recv(blocks, call, block_step(from[s]), source, taken(source), from[s]);
    post_send(blocks, call, kSizeStep, target, &to[t], sizeof to[t]);
    post_send(blocks, call, block_step(to[t]), target, given(target), to[t]);
  }
  copy_bytes(taken(rank_), given(rank_), from[me]);
  call.wait_all(sizes);
  const auto job_rank = [&](int r) { return ranks_.empty() ? r : ranks_[static_cast<std::size_t>(r)]; };
  for (int r = 0; r < world_size_; ++r) {
    const auto at = static_cast<std::size_t>(r);
    LOCKSTEP_CHECK(
        r == rank_ || told[at] == from[at],
        "mismatched counts: rank {} has {} element(s) for rank {}, which expects {}; pass counts that agree on "
        "all ranks",
        job_rank(r), told[at] / call.element(), job_rank(rank_), from[at] / call.element());
  }
  call.wait_all(blocks);
}

}  // namespace lockstep::distributed
