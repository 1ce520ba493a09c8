#include <algorithm>
#include <cstring>

#include "lockstep/distributed/collectives/collectives_call.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/collectives/tree_sum.h"

namespace lockstep::distributed {

void Collectives::all_reduce_tree(const Call& call) {
  const Tensor& output = call.operation.output;
  const std::size_t bytes = output.nbytes();
  if (bytes == 0) return;
  const std::int64_t count = output.numel();
  const bool whole = bytes <= kWholeBytes;
  const auto begin = [&](int r) {
    return static_cast<std::size_t>(block_begin(count, world_size_, r)) * call.element();
  };
  std::byte* const input = bytes_of(call.operation.input);

  std::vector<TreeNode> nodes;          // of all ranks, from left to right
  std::vector<int> owners;              // by node
  std::vector<std::size_t> unit_count;  // by rank
  for (int r = 0; r < world_size_; ++r) {
    const std::vector<TreeNode> units = tree_units(shards_of_worker(call.operation.shards, world_size_, r));
    nodes.insert(nodes.end(), units.begin(), units.end());
    owners.insert(owners.end(), units.size(), r);
    unit_count.push_back(units.size());
  }
  const std::size_t my_units = unit_count[static_cast<std::size_t>(rank_)];

  // Every rank gets everybody's units of the block that it adds up; of little, that is everything.
  Requests sends;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ + i) % world_size_;
    const std::size_t at = whole ? 0 : begin(peer);
    const std::size_t length = whole ? bytes : begin(peer + 1) - begin(peer);
    for (std::size_t u = 0; u < my_units; ++u) post_send(sends, call, 0, peer, input + u * bytes + at, length);
  }
  const std::size_t mine = whole ? 0 : begin(rank_);
  const std::size_t mine_bytes = whole ? bytes : begin(rank_ + 1) - mine;

  // Sends of little read the units until the end, and `output` may be one of them.
  const std::size_t result_bytes = whole ? bytes : 0;
  std::byte* incoming = scratch(result_bytes + mine_bytes * (nodes.size() - my_units));
  std::byte* const result = whole ? incoming : bytes_of(output) + mine;
  incoming += result_bytes;
  std::vector<Views> views(nodes.size());
  std::vector<const std::byte*> own(nodes.size());
  for (std::size_t n = 0, unit = 0; n < nodes.size(); ++n) {
    if (owners[n] == rank_) {
      own[n] = input + unit++ * bytes + mine;
      continue;
    }
    // Several units of one rank are read side by side.
    views[n] =
        post_views(call, 0, owners[n], incoming, mine_bytes, unit_count[static_cast<std::size_t>(owners[n])] == 1);
    incoming += mine_bytes;
  }

  std::vector<const void*> parts(nodes.size());
  // Read here: an operation that was issued before this one may write it.
  const double divisor = call.operation.divisor.defined() ? *call.operation.divisor.data<double>() : 1.0;
  for_slices(mine_bytes, [&](std::size_t piece, std::size_t at, std::size_t length) {
    for (const Views& pieces : views)
      if (!pieces.empty()) pieces[piece]->wait(length, call.deadline);
    for (std::size_t n = 0; n < nodes.size(); ++n) parts[n] = own[n] ? own[n] + at : views[n][piece]->next(length);
    tree_sum(call.dtype(), result + at, parts, nodes, static_cast<std::int64_t>(length / call.element()), divisor);
    for (Views& pieces : views)
      if (!pieces.empty()) pieces[piece]->release();
  });
  call.wait_all(sends);
  if (whole) return copy_bytes(bytes_of(output), result, bytes);
  share_blocks(call, bytes_of(output), count);
}

}  // namespace lockstep::distributed
