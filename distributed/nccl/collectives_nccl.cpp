// The operations of a process group as calls of NCCL.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/nccl/combine.h"
#include "lockstep/distributed/nccl/nccl_executor.h"

namespace lockstep::distributed::nccl {
namespace {

constexpr std::size_t kBlocksBytes = std::size_t{128} << 10;  // of a tree's sum
constexpr std::int64_t kBlocksAt = 16;                        // elements

ncclDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::float16:
      return ncclFloat16;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::int64:
      return ncclInt64;
    case DType::int32:
      return ncclInt32;
    default:
      return ncclUint8;
  }
}

// NCCL's average divides each rank's values before it adds them. Half types need that, as their sums overflow at 65504;
// where the divisor is a power of two the bits are those of the sum divided, which takes a pass of its own.
bool divides_first(ReduceOp op, DType dtype, int world_size) {
  return op == ReduceOp::avg && is_floating_point(dtype) &&
         (element_size(dtype) == 2 || std::has_single_bit(static_cast<unsigned>(world_size)));
}

ncclRedOp_t reduction(ReduceOp op, DType dtype, int world_size) {
  if (divides_first(op, dtype, world_size)) return ncclAvg;
  switch (op) {
    case ReduceOp::product:
      return ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    default:
      return ncclSum;  // and divided afterwards
  }
}

char* bytes_of(const Tensor& tensor, std::size_t offset = 0) {
  const LibraryAccess access;
  return static_cast<char*>(tensor.raw_data()) + offset;
}

/// The block of a rank, which begins `offset` bytes into `whole` where there is no list of blocks.
char* block_of(const Tensor& whole, const std::vector<Tensor>& list, std::size_t offset, int rank) {
  return list.empty() ? bytes_of(whole, offset) : bytes_of(list[static_cast<std::size_t>(rank)]);
}

std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

}  // namespace

// On stream_, which is the current one.
void NcclExecutor::issue_on_stream(const Operation& operation) {
  if (operation.kind == OperationKind::all_reduce_tree) return issue_tree(operation);
  const Library& nccl = Library::get();
  const Tensor& input = operation.input;
  const Tensor& output = operation.output;
  cudaStream_t stream = stream_.handle();
  communicator_->group(describe(operation), deadline(), [&](ncclComm_t comm) {
    switch (operation.kind) {
      case OperationKind::broadcast:
        return communicator_->check(
            nccl.broadcast(bytes_of(input), bytes_of(output), input.nbytes(), ncclUint8, operation.peer, comm, stream),
            "ncclBroadcast");
      case OperationKind::all_reduce:
        return communicator_->check(
            nccl.all_reduce(bytes_of(input), bytes_of(output), count_of(input), data_type(input.dtype()),
                            reduction(operation.reduce, input.dtype(), group_.world_size()), comm, stream),
            "ncclAllReduce");
      case OperationKind::reduce:
        return communicator_->check(
            nccl.reduce(bytes_of(input), bytes_of(output), count_of(input), data_type(input.dtype()),
                        reduction(operation.reduce, input.dtype(), group_.world_size()), operation.peer, comm, stream),
            "ncclReduce");
      case OperationKind::all_gather:
        return communicator_->check(
            nccl.all_gather(bytes_of(input), bytes_of(output), input.nbytes(), ncclUint8, comm, stream),
            "ncclAllGather");
      case OperationKind::reduce_scatter:
        if (scatters_a_list(operation)) return issue_reductions(operation, comm);
        return communicator_->check(
            nccl.reduce_scatter(bytes_of(input), bytes_of(output), count_of(output), data_type(input.dtype()),
                                reduction(operation.reduce, input.dtype(), group_.world_size()), comm, stream),
            "ncclReduceScatter");
      case OperationKind::gather:
      case OperationKind::scatter:
        return issue_rooted(operation, comm);
      case OperationKind::all_to_all:
        return issue_all_to_all(operation, comm);
      case OperationKind::all_gather_uneven:
      case OperationKind::all_to_all_uneven:
        return issue_uneven(operation, comm);
      case OperationKind::barrier:
        return communicator_->check(
            nccl.all_reduce(bytes_of(barrier_value_), bytes_of(barrier_value_), 1, ncclFloat32, ncclSum, comm, stream),
            "ncclAllReduce");
      case OperationKind::send:
      case OperationKind::recv:
      case OperationKind::exchange:
        if (input.defined())
          communicator_->check(nccl.send(bytes_of(input), input.nbytes(), ncclUint8, operation.peer, comm, stream),
                               "ncclSend");
        if (output.defined())
          communicator_->check(nccl.recv(bytes_of(output), output.nbytes(), ncclUint8, operation.peer, comm, stream),
                               "ncclRecv");
        return;
      case OperationKind::all_reduce_tree:
        return;
    }
  });
  const bool has_result = operation.kind != OperationKind::reduce || operation.peer == group_.rank();
  const bool averages = operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce ||
                        operation.kind == OperationKind::reduce_scatter;
  if (averages && has_result && operation.reduce == ReduceOp::avg && output.numel() > 0 &&
      !divides_first(operation.reduce, input.dtype(), group_.world_size()))
    divide(output, group_.world_size());
}

// Blocks of different sizes, each where it stands: one reduction for each rank, in one group.
void NcclExecutor::issue_reductions(const Operation& operation, ncclComm_t comm) {
  const DType dtype = operation.output.dtype();
  for (int root = 0; root < group_.world_size(); ++root)
    if (const Tensor& block = operation.inputs[static_cast<std::size_t>(root)]; block.numel() > 0)
      communicator_->check(
          Library::get().reduce(bytes_of(block), bytes_of(root == group_.rank() ? operation.output : block),
                                count_of(block), data_type(dtype),
                                reduction(operation.reduce, dtype, group_.world_size()), root, comm, stream_.handle()),
          "ncclReduce");
}

void NcclExecutor::issue_all_to_all(const Operation& operation, ncclComm_t comm) {
  const Library& nccl = Library::get();
  const std::size_t block = operation.input.nbytes() / static_cast<std::size_t>(group_.world_size());
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    const std::size_t offset = block * static_cast<std::size_t>(peer);
    communicator_->check(nccl.send(bytes_of(operation.input, offset), block, ncclUint8, peer, comm, stream_.handle()),
                         "ncclSend");
    communicator_->check(nccl.recv(bytes_of(operation.output, offset), block, ncclUint8, peer, comm, stream_.handle()),
                         "ncclRecv");
  }
}

void NcclExecutor::issue_uneven(const Operation& operation, ncclComm_t comm) {
  const Library& nccl = Library::get();
  const std::size_t element = element_size(operation.input.dtype());
  const bool gathers = operation.kind == OperationKind::all_gather_uneven;
  std::size_t sent = 0, received = 0;
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const std::size_t out =
        gathers ? operation.input.nbytes() : static_cast<std::size_t>(operation.input_counts[p]) * element;
    const std::size_t in = static_cast<std::size_t>(operation.output_counts[p]) * element;
    if (out > 0)
      communicator_->check(nccl.send(block_of(operation.input, operation.inputs, sent, peer), out, ncclUint8, peer,
                                     comm, stream_.handle()),
                           "ncclSend");
    if (in > 0)
      communicator_->check(nccl.recv(block_of(operation.output, operation.outputs, received, peer), in, ncclUint8, peer,
                                     comm, stream_.handle()),
                           "ncclRecv");
    if (!gathers) sent += out;
    received += in;
  }
}

void NcclExecutor::issue_rooted(const Operation& operation, ncclComm_t comm) {
  const Library& nccl = Library::get();
  const bool gathers = operation.kind == OperationKind::gather;
  const Tensor& one = gathers ? operation.input : operation.output;
  const Tensor& blocks = gathers ? operation.output : operation.input;
  const std::vector<Tensor>& list = gathers ? operation.outputs : operation.inputs;
  cudaStream_t stream = stream_.handle();
  const auto send = [&](const char* from, int peer) {
    communicator_->check(nccl.send(from, one.nbytes(), ncclUint8, peer, comm, stream), "ncclSend");
  };
  const auto recv = [&](char* to, int peer) {
    communicator_->check(nccl.recv(to, one.nbytes(), ncclUint8, peer, comm, stream), "ncclRecv");
  };
  if (group_.rank() == operation.peer) {
    for (int peer = 0; peer < group_.world_size(); ++peer) {
      char* const block = block_of(blocks, list, one.nbytes() * static_cast<std::size_t>(peer), peer);
      gathers ? recv(block, peer) : send(block, peer);
    }
  }
  gathers ? send(bytes_of(one), operation.peer) : recv(bytes_of(one), operation.peer);
}

// As the CPU's collectives: every rank gets its block of all units, adds them up in the tree's order, and the blocks
// come together on all ranks. A rank sends less than twice the result, in two rounds; all units on every rank would be
// as many times it as there are ranks, so that is only for what is so small that a round counts for more.
void NcclExecutor::issue_tree_by_blocks(const Operation& operation, const std::vector<std::vector<TreeNode>>& nodes) {
  const int world = group_.world_size(), rank = group_.rank();
  const Tensor& output = operation.output;
  const std::int64_t numel = output.numel();
  // Blocks begin where vector loads of any dtype may.
  const std::int64_t length = ((numel + world - 1) / world + kBlocksAt - 1) / kBlocksAt * kBlocksAt;
  const auto begin_of = [&](int of) { return std::min(of * length, numel); };
  const auto count_of_block = [&](int of) { return begin_of(of + 1) - begin_of(of); };
  const auto part = [](const Tensor& of, std::int64_t begin, std::int64_t count) {
    return of.as_strided({count}, {1}, of.offset() + begin);
  };
  const auto units_of = [&](int of) { return std::ssize(nodes[static_cast<std::size_t>(of)]); };
  const TensorOptions options = options_of(output);

  Tensor sent = operation.input;  // block by block; several units have to be brought into that order
  if (units_of(rank) > 1) {
    sent = empty({units_of(rank) * numel}, options);
    for (int peer = 0; peer < world; ++peer)
      for (std::int64_t unit = 0; unit < units_of(rank) && count_of_block(peer) > 0; ++unit)
        copy_values(part(operation.input, unit * numel + begin_of(peer), count_of_block(peer)),
                    part(sent, units_of(rank) * begin_of(peer) + unit * count_of_block(peer), count_of_block(peer)));
  }
  std::int64_t all_units = 0;
  for (int peer = 0; peer < world; ++peer) all_units += units_of(peer);
  const std::int64_t own = count_of_block(rank);
  const Tensor received = empty({all_units * own}, options);
  const auto exchange = [&](const std::function<Tensor(int)>& to, const std::function<Tensor(int)>& from) {
    const Library& nccl = Library::get();
    communicator_->group(describe(operation), deadline(), [&](ncclComm_t comm) {
      for (int peer = 0; peer < world; ++peer) {
        if (const Tensor out = to(peer); out.numel() > 0)
          communicator_->check(nccl.send(bytes_of(out), out.nbytes(), ncclUint8, peer, comm, stream_.handle()),
                               "ncclSend");
        if (const Tensor in = from(peer); in.numel() > 0)
          communicator_->check(nccl.recv(bytes_of(in), in.nbytes(), ncclUint8, peer, comm, stream_.handle()),
                               "ncclRecv");
      }
    });
  };
  std::int64_t arrived = 0;
  exchange([&](int peer) { return part(sent, units_of(rank) * begin_of(peer), units_of(rank) * count_of_block(peer)); },
           [&](int peer) {
             const std::int64_t first = std::exchange(arrived, arrived + units_of(peer) * own);
             return part(received, first, units_of(peer) * own);
           });
  const Tensor result = part(output, 0, numel);
  if (own > 0) {
    TreeStack<Tensor> stack;
    std::int64_t at = 0;
    for (const std::vector<TreeNode>& units : nodes)
      for (const TreeNode& node : units)
        stack.push(node, part(received, std::exchange(at, at + own), own),
                   [](const Tensor& left, const Tensor& right) { add(left, right); });
    LOCKSTEP_ASSERT(stack.entries().size() == 1, "the units leave {} nodes", stack.entries().size());
    finish(part(result, begin_of(rank), own), stack.entries().front().value, operation.divisor);
  }
  const Tensor nothing = part(result, 0, 0);
  exchange([&](int peer) { return peer == rank ? nothing : part(result, begin_of(rank), own); },
           [&](int peer) { return peer == rank ? nothing : part(result, begin_of(peer), count_of_block(peer)); });
  if (stream_.is_capturing()) captured_.insert(captured_.end(), {sent, received});
}

// Every rank gets all units and adds them up in the tree's order, one addition after the other.
void NcclExecutor::issue_tree(const Operation& operation) {
  const std::int64_t numel = operation.output.numel();
  std::vector<std::vector<TreeNode>> nodes;
  std::size_t most = 0;
  for (int worker = 0; worker < group_.world_size(); ++worker) {
    nodes.push_back(tree_units(shards_of_worker(operation.shards, group_.world_size(), worker)));
    most = std::max(most, nodes.back().size());
  }
  if (group_.world_size() > 2 && operation.output.nbytes() >= kBlocksBytes)
    return issue_tree_by_blocks(operation, nodes);
  const TensorOptions options = options_of(operation.output);
  const auto per_rank = static_cast<std::int64_t>(most) * numel;
  Tensor own = operation.input;
  if (own.numel() < per_rank) {
    own = zeros({per_rank}, options);
    copy_values(operation.input.as_strided({operation.input.numel()}, {1}, operation.input.offset()),
                own.as_strided({operation.input.numel()}, {1}, 0));
  }
  const Tensor all = empty({group_.world_size() * per_rank}, options);
  communicator_->group(describe(operation), deadline(), [&](ncclComm_t comm) {
    communicator_->check(
        Library::get().all_gather(bytes_of(own), bytes_of(all), own.nbytes(), ncclUint8, comm, stream_.handle()),
        "ncclAllGather");
  });
  TreeStack<Tensor> stack;
  for (int worker = 0; worker < group_.world_size(); ++worker) {
    const auto& units = nodes[static_cast<std::size_t>(worker)];
    for (std::size_t unit = 0; unit < units.size(); ++unit)
      stack.push(units[unit], all.as_strided({numel}, {1}, worker * per_rank + static_cast<std::int64_t>(unit) * numel),
                 [](const Tensor& left, const Tensor& right) { add(left, right); });
  }
  LOCKSTEP_ASSERT(stack.entries().size() == 1, "the units leave {} nodes", stack.entries().size());
  finish(operation.output.as_strided({numel}, {1}, operation.output.offset()), stack.entries().front().value,
         operation.divisor);
  if (stream_.is_capturing()) captured_.insert(captured_.end(), {own, all});
}

}  // namespace lockstep::distributed::nccl
