#include "lockstep/distributed/collectives/collectives.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/distributed/collectives/collectives_call.h"
#include "lockstep/distributed/collectives/reduce_kernel.h"

namespace lockstep::distributed {
namespace {

// In larger worlds a rank does not talk to all others at once about little.
constexpr int kLargeWorld = 16;

}  // namespace

std::uint64_t message_tag(std::uint64_t history, std::uint64_t number, std::uint64_t step) {
  // splitmix64's finalizer over the mixture.
  std::uint64_t x = history + number * 0x9e3779b97f4a7c15ull + step * 0xd1b54a32d192ed03ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t call_history(std::uint64_t before, std::uint64_t fingerprint) {
  return message_tag(before, fingerprint, 1);
}

void Collectives::run(const Operation& operation, std::uint64_t history, Deadline deadline) {
  run(Call{operation, deadline, history});
  if (const int from = transport_.unread_up_to(operation.number); from >= 0)
    throw TransportError(
        from, fmt::format("rank {} has sent to this one in a collective that has ended here without it", from));
}

void Collectives::run(const Call& call) {
  const Operation& operation = call.operation;
  const Tensor& input = operation.input;
  const Tensor& output = operation.output;
  const Tensor& agreed = agreed_tensor(operation);
  if (agreed.defined() && agreed.nbytes() == 0 && !is_uneven(operation.kind) && !scatters_a_list(operation))
    return barrier(call);
  switch (operation.kind) {
    case OperationKind::broadcast:
      return broadcast(call, bytes_of(output), output.nbytes(), operation.peer);
    case OperationKind::all_reduce:
      return all_reduce(call);
    case OperationKind::all_reduce_tree:
      return all_reduce_tree(call);
    case OperationKind::reduce:
      return reduce(call, operation.peer);
    case OperationKind::all_gather:
      return all_gather(call, bytes_of(input), bytes_of(output), input.nbytes());
    case OperationKind::gather:
      return gather(call);
    case OperationKind::scatter:
      return scatter(call);
    case OperationKind::reduce_scatter:
      return reduce_scatter(call);
    case OperationKind::all_to_all:
      return all_to_all(call);
    case OperationKind::all_gather_uneven:
    case OperationKind::all_to_all_uneven:
      return exchange_uneven(call);
    case OperationKind::barrier:
      return barrier(call);
    default:
      LOCKSTEP_ASSERT(false, "{} is no collective", name(operation.kind));
  }
}

void Collectives::broadcast(const Call& call, void* data, std::size_t bytes, int root) {
  // A binomial tree rooted at `root`: in the round of distance d, ranks below d pass on to d above them.
  const int me = (rank_ - root + world_size_) % world_size_;
  Requests sends;
  int distance = 1;
  if (me != 0) {
    while (distance * 2 <= me) distance *= 2;
    Requests recvs;
    post_recv(recvs, call, 0, (me - distance + root) % world_size_, data, bytes);
    call.wait_all(recvs);
    distance *= 2;
  }
  for (; me + distance < world_size_; distance *= 2)
    post_send(sends, call, 0, (me + distance + root) % world_size_, data, bytes);
  call.wait_all(sends);
}

void Collectives::all_reduce(const Call& call) {
  const std::size_t bytes = call.operation.output.nbytes();
  if (bytes == 0) return;
  if (bytes > kWholeBytes) return all_reduce_blocks(call);
  if (world_size_ <= kLargeWorld) return all_reduce_whole(call);
  reduce_tree(call);
  broadcast(call, bytes_of(call.operation.output), bytes, 0);
}

void Collectives::all_reduce_whole(const Call& call) {
  std::byte* data = bytes_of(call.operation.output);
  const std::size_t bytes = call.operation.output.nbytes();
  // Sends read the tensor until everybody has it, so the result waits in its own slot of the scratch memory.
  std::byte* all = scratch(bytes * static_cast<std::size_t>(world_size_));
  std::byte* result = all + bytes * static_cast<std::size_t>(rank_);
  Requests recvs, sends;
  std::vector<const void*> parts;
  for (int r = 0; r < world_size_; ++r) {
    std::byte* slot = all + bytes * static_cast<std::size_t>(r);
    parts.push_back(r == rank_ ? data : slot);
    if (r != rank_) post_recv(recvs, call, 0, r, slot, bytes);
  }
  for (int i = 1; i < world_size_; ++i) post_send(sends, call, 0, (rank_ + i) % world_size_, data, bytes);
  call.wait_all(recvs);
  reduce_parts(call.dtype(), call.operation.reduce, result, parts, call.operation.output.numel(),
               call.divisor(world_size_));
  call.wait_all(sends);
  copy_bytes(data, result, bytes);
}

void Collectives::all_reduce_blocks(const Call& call) {
  std::byte* data = bytes_of(call.operation.output);
  const std::int64_t count = call.operation.output.numel();
  const std::size_t element = call.element();
  const auto begin = [&](int r) { return static_cast<std::size_t>(block_begin(count, world_size_, r)) * element; };

  Requests sends;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ + i) % world_size_;
    post_send(sends, call, 0, peer, data + begin(peer), begin(peer + 1) - begin(peer));
  }
  const std::size_t mine = begin(rank_);
  const std::size_t mine_bytes = begin(rank_ + 1) - mine;
  reduce_own_block(call, data + mine, data + mine, static_cast<std::int64_t>(mine_bytes / element),
                   call.divisor(world_size_));
  call.wait_all(sends);

  share_blocks(call, data, count);
}

void Collectives::share_blocks(const Call& call, std::byte* data, std::int64_t count) {
  const auto begin = [&](int r) {
    return static_cast<std::size_t>(block_begin(count, world_size_, r)) * call.element();
  };
  const std::byte* mine = data + begin(rank_);
  const std::size_t mine_bytes = begin(rank_ + 1) - begin(rank_);
  Requests requests;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ - i + world_size_) % world_size_;
    post_recv(requests, call, 1, peer, data + begin(peer), begin(peer + 1) - begin(peer));
  }
  for (int i = 1; i < world_size_; ++i) post_send(requests, call, 1, (rank_ + i) % world_size_, mine, mine_bytes);
  call.wait_all(requests);
}

/// Receives this rank's block from all others (step 0) and reduces it with `mine` into `target`, piece by piece.
void Collectives::reduce_own_block(const Call& call, const std::byte* mine, std::byte* target, std::int64_t count,
                                   double divisor) {
  const std::size_t bytes = static_cast<std::size_t>(count) * call.element();
  std::byte* others = scratch(bytes * static_cast<std::size_t>(world_size_ - 1));
  std::vector<Views> views(static_cast<std::size_t>(world_size_));
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    views[static_cast<std::size_t>(r)] = post_views(call, 0, r, others, bytes, true);
    others += bytes;
  }
  std::vector<const void*> parts(views.size());
  for_slices(bytes, [&](std::size_t piece, std::size_t at, std::size_t length) {
    for (const Views& pieces : views)
      if (!pieces.empty()) pieces[piece]->wait(length, call.deadline);
    for (std::size_t r = 0; r < views.size(); ++r)
      parts[r] = views[r].empty() ? mine + at : views[r][piece]->next(length);
    reduce_parts(call.dtype(), call.operation.reduce, target + at, parts,
                 static_cast<std::int64_t>(length / call.element()), divisor);
    for (Views& pieces : views)
      if (!pieces.empty()) pieces[piece]->release();
  });
}

void Collectives::reduce(const Call& call, int root) {
  const Tensor& tensor = call.operation.output;
  if (rank_ == root)
    return reduce_own_block(call, bytes_of(tensor), bytes_of(tensor), tensor.numel(), call.divisor(world_size_));
  Requests sends;
  post_send(sends, call, 0, root, bytes_of(tensor), tensor.nbytes());
  call.wait_all(sends);
}

void Collectives::reduce_tree(const Call& call) {
  // To rank 0, in place. Rank r holds the sum of ranks r to r + distance - 1 before each round.
  const Tensor& tensor = call.operation.output;
  for (int distance = 1; distance < world_size_; distance *= 2) {
    Requests requests;
    if (rank_ % (2 * distance) != 0) {
      post_send(requests, call, 1, rank_ - distance, bytes_of(tensor), tensor.nbytes());
      return call.wait_all(requests);
    }
    if (rank_ + distance >= world_size_) continue;
    std::byte* other = scratch(tensor.nbytes());
    post_recv(requests, call, 1, rank_ + distance, other, tensor.nbytes());
    call.wait_all(requests);
    const void* parts[] = {bytes_of(tensor), other};
    reduce_parts(call.dtype(), call.operation.reduce, bytes_of(tensor), parts, tensor.numel());
  }
  const void* sum[] = {bytes_of(tensor)};
  reduce_parts(call.dtype(), call.operation.reduce, bytes_of(tensor), sum, tensor.numel(), call.divisor(world_size_));
}

void Collectives::all_gather(const Call& call, const std::byte* block, std::byte* blocks, std::size_t block_bytes) {
  Requests requests;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ - i + world_size_) % world_size_;
    post_recv(requests, call, 0, peer, blocks + block_bytes * static_cast<std::size_t>(peer), block_bytes);
  }
  for (int i = 1; i < world_size_; ++i) post_send(requests, call, 0, (rank_ + i) % world_size_, block, block_bytes);
  copy_bytes(blocks + block_bytes * static_cast<std::size_t>(rank_), block, block_bytes);
  call.wait_all(requests);
}

void Collectives::gather(const Call& call) {
  const Tensor& input = call.operation.input;
  const std::size_t bytes = input.nbytes();
  Requests requests;
  if (rank_ != call.operation.peer) {
    post_send(requests, call, 0, call.operation.peer, bytes_of(input), bytes);
  } else {
    for (int r = 0; r < world_size_; ++r) {
      std::byte* slot = call.output_block(r, bytes * static_cast<std::size_t>(r));
      if (r == rank_)
        copy_bytes(slot, bytes_of(input), bytes);
      else
        post_recv(requests, call, 0, r, slot, bytes);
    }
  }
  call.wait_all(requests);
}

void Collectives::scatter(const Call& call) {
  const Tensor& output = call.operation.output;
  const std::size_t bytes = output.nbytes();
  Requests requests;
  if (rank_ != call.operation.peer) {
    post_recv(requests, call, 0, call.operation.peer, bytes_of(output), bytes);
  } else {
    for (int r = 0; r < world_size_; ++r) {
      const std::byte* slot = call.input_block(r, bytes * static_cast<std::size_t>(r));
      if (r == rank_)
        copy_bytes(bytes_of(output), slot, bytes);
      else
        post_send(requests, call, 0, r, slot, bytes);
    }
  }
  call.wait_all(requests);
}

void Collectives::reduce_scatter(const Call& call) {
  const Tensor& output = call.operation.output;
  const std::vector<Tensor>& inputs = call.operation.inputs;
  const auto block = [&](int r) { return call.input_block(r, output.nbytes() * static_cast<std::size_t>(r)); };
  Requests sends;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ + i) % world_size_;
    const Tensor& sizes = inputs.empty() ? output : inputs[static_cast<std::size_t>(peer)];
    post_send(sends, call, 0, peer, block(peer), sizes.nbytes());
  }
  reduce_own_block(call, block(rank_), bytes_of(output), output.numel(), call.divisor(world_size_));
  call.wait_all(sends);
}

void Collectives::all_to_all(const Call& call) {
  const std::byte* input = bytes_of(call.operation.input);
  std::byte* output = bytes_of(call.operation.output);
  const std::size_t bytes = call.operation.input.nbytes() / static_cast<std::size_t>(world_size_);
  const auto block = [&](int r) { return bytes * static_cast<std::size_t>(r); };
  Requests requests;
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ - i + world_size_) % world_size_;
    post_recv(requests, call, 0, peer, output + block(peer), bytes);
  }
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ + i) % world_size_;
    post_send(requests, call, 0, peer, input + block(peer), bytes);
  }
  copy_bytes(output + block(rank_), input + block(rank_), bytes);
  call.wait_all(requests);
}

void Collectives::barrier(const Call& call) {
  // Dissemination: after the round of distance d a rank has heard, directly or not, from the 2 d - 1 before it.
  for (int distance = 1; distance < world_size_; distance *= 2) {
    std::byte out{}, in{};
    Requests requests;
    const auto step = static_cast<std::uint64_t>(distance);
    post_recv(requests, call, step, (rank_ - distance + world_size_) % world_size_, &in, 1);
    post_send(requests, call, step, (rank_ + distance) % world_size_, &out, 1);
    call.wait_all(requests);
  }
}

void Collectives::post_send(Requests& requests, const Call& call, std::uint64_t step, int peer, const void* data,
                            std::size_t bytes) {
  const std::uint64_t tag = call.tag(step);
  const auto* next = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += kPieceBytes)
    requests.push_back(transport_.send(peer, tag, next + at, std::min(kPieceBytes, bytes - at)));
}

void Collectives::post_recv(Requests& requests, const Call& call, std::uint64_t step, int peer, void* data,
                            std::size_t bytes) {
  const std::uint64_t tag = call.tag(step);
  auto* next = static_cast<std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += kPieceBytes)
    requests.push_back(transport_.recv(peer, tag, next + at, std::min(kPieceBytes, bytes - at)));
}

Collectives::Views Collectives::post_views(const Call& call, std::uint64_t step, int peer, std::byte* room,
                                           std::size_t bytes, bool in_order) {
  const std::uint64_t tag = call.tag(step);
  Views views;
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    const std::size_t length = std::min(kPieceBytes, bytes - at);
    views.push_back(in_order ? transport_.view(peer, tag, room + at, length)
                             : transport_.buffered_view(peer, tag, room + at, length));
  }
  return views;
}

std::byte* Collectives::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

}  // namespace lockstep::distributed
