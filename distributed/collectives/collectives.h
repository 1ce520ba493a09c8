#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {

/// Note [Collectives]
/// The collectives, on a transport that moves bytes. The arithmetic is ours, so results do not depend on the backend,
/// and every reduction combines the ranks in rank order: all ranks get the same bits, run after run.
///
/// - all_reduce: block r of the tensor is reduced by rank r, which gets it from everybody and gives the result back to
///   everybody: each rank sends 2 (W - 1) / W of the tensor, the least possible, in two rounds for any W. Small tensors
///   go whole to everybody in one round; in large worlds, up and down a binomial tree.
/// - all_reduce_tree: the same two rounds, but ranks give the units of the shard tree that they hold (one each, if W is
/// a
///   power of two), and a block is added up along the tree. Recursive halving would take 2 log2(W) rounds, moves no
///   less, and works for powers of two alone.
/// - broadcast and barrier take log2(W) rounds; the others exchange their blocks directly.
///
/// Large blocks travel in pieces of a MiB, so that reducing one piece overlaps with receiving the next. What is reduced
/// is read where the transport has it, a slice at a time.
///
/// Uneven blocks travel behind a message with their number of bytes, which is compared with what the receiver expects,
/// so that counts which do not fit are an error at once and not at the deadline.
///
/// Tags are made from the operation's number and its history, a hash of the fingerprints of all collectives up to it:
/// the messages of mismatched calls never meet, instead of landing in buffers of another size. Nor do those of later
/// calls: where a mismatch leaves nobody waiting (two ranks that each take themselves for the root of a broadcast only
/// send), the next collective that waits for the other rank finds it out; and where the transport can tell (shared
/// memory), so does the end of the one in which a message stays unread. Where there is nothing to move, the ranks
/// meet all the same, so that an empty tensor on one of them is noticed.
/// Not thread-safe: one operation at a time.
class Collectives {
 public:
  /// `ranks`: the job's number of each rank, for messages; empty: the same.
  Collectives(Transport& transport, int rank, int world_size, std::vector<int> ranks = {})
      : transport_(transport), rank_(rank), world_size_(world_size), ranks_(std::move(ranks)) {}

  /// Runs one collective to its end. `history`: call_history() of it. Throws TransportError.
  void run(const Operation& operation, std::uint64_t history, Deadline deadline);

 private:
  struct Call;
  void run(const Call& call);
  using Requests = std::vector<std::unique_ptr<Transport::Request>>;
  using Views = std::vector<std::unique_ptr<Transport::View>>;  // of the pieces of one block

  void broadcast(const Call& call, void* data, std::size_t bytes, int root);
  void all_reduce(const Call& call);
  void all_reduce_whole(const Call& call);
  void all_reduce_blocks(const Call& call);
  void all_reduce_tree(const Call& call);
  void reduce(const Call& call, int root);
  void reduce_tree(const Call& call);
  void all_gather(const Call& call, const std::byte* block, std::byte* blocks, std::size_t block_bytes);
  void gather(const Call& call);
  void scatter(const Call& call);
  void reduce_scatter(const Call& call);
  void all_to_all(const Call& call);
  void exchange_uneven(const Call& call);
  void barrier(const Call& call);

  /// Gives everybody this rank's block of `data`, and takes theirs (step 1).
  void share_blocks(const Call& call, std::byte* data, std::int64_t count);
  void reduce_own_block(const Call& call, const std::byte* mine, std::byte* target, std::int64_t count, double divisor);
  void post_send(Requests& requests, const Call& call, std::uint64_t step, int peer, const void* data,
                 std::size_t bytes);
  void post_recv(Requests& requests, const Call& call, std::uint64_t step, int peer, void* data, std::size_t bytes);
  /// `in_order`: the blocks of this peer are read one after the other.
  Views post_views(const Call& call, std::uint64_t step, int peer, std::byte* room, std::size_t bytes, bool in_order);
  std::byte* scratch(std::size_t bytes);

  Transport& transport_;
  int rank_;
  int world_size_;
  std::vector<int> ranks_;
  std::vector<std::byte> scratch_;
};

/// The tag of one step of an operation between two ranks; equal on both if they made the same call.
std::uint64_t message_tag(std::uint64_t history, std::uint64_t number, std::uint64_t step);
/// Of a collective with this fingerprint that is called after those of `before` (0: it is the first): equal on two
/// ranks if they made the same calls up to here, in the same order.
std::uint64_t call_history(std::uint64_t before, std::uint64_t fingerprint);

}  // namespace lockstep::distributed
