// Collectives with each rank's block in a tensor of its own.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {
namespace {

using Blocks = std::vector<Tensor>;

std::vector<std::int64_t> counts_of(const Blocks& blocks) {
  std::vector<std::int64_t> counts;
  for (const Tensor& block : blocks) counts.push_back(block.numel());
  return counts;
}

/// Throws Error where memory that is written is written again or read, but for `own_output` as `own_input`.
void check_distinct(const Blocks& outputs, const Blocks& inputs, const Tensor& own_output, const Tensor& own_input,
                    OperationKind kind) {
  struct Range {
    const char *begin, *end;
    bool written;
  };
  std::vector<Range> ranges;
  const auto add = [&](const Tensor& tensor, bool written) {
    const auto* begin = static_cast<const char*>(tensor.raw_data());
    if (tensor.numel() > 0) ranges.push_back({begin, begin + tensor.nbytes(), written});
  };
  for (const Tensor& output : outputs) add(output, true);
  bool in_place = own_output.raw_data() == own_input.raw_data();
  for (const Tensor& input : inputs) {
    if (in_place && input.raw_data() == own_input.raw_data())
      in_place = false;  // once
    else
      add(input, false);
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  const char *read_to = nullptr, *written_to = nullptr;
  for (const Range& range : ranges) {
    LOCKSTEP_CHECK(range.begin >= written_to && (!range.written || range.begin >= read_to),
                   "[{}] a tensor that is written shares memory with another one of the operation; expected memory of "
                   "its own for each rank's block",
                   name(kind));
    const char*& end = range.written ? written_to : read_to;
    end = std::max(end, range.end);
  }
}

}  // namespace

// This rank's of `list`, whose tensors have the dtype and device of `like`; undefined: those of this rank's.
const Tensor& ProcessGroup::own_block(const Blocks& list, const char* what, const Tensor& like,
                                      OperationKind kind) const {
  LOCKSTEP_CHECK(std::cmp_equal(list.size(), world_size()),
                 "[{}] {} has {} tensor(s); expected one for each of {} ranks", name(kind), what, list.size(),
                 world_size());
  const Tensor& own = list[static_cast<std::size_t>(rank())];
  for (const Tensor& each : list) {
    check_tensor(each, what, kind);
    check_pair(each, what, like.defined() ? like : own, like.defined() ? "the other tensor" : "this rank's of them",
               kind);
  }
  return own;
}

void ProcessGroup::check_same_size(const Blocks& list, const char* what, const Tensor& one, const char* one_name,
                                   OperationKind kind) const {
  for (std::size_t r = 0; r < list.size(); ++r)
    LOCKSTEP_CHECK(list[r].numel() == one.numel(), "[{}] {}[{}] {} has {} elements; expected {}, those of {} {}",
                   name(kind), what, r, to_string(list[r].sizes()), list[r].numel(), one.numel(), one_name,
                   to_string(one.sizes()));
}

WorkPtr ProcessGroup::all_gather(const Blocks& outputs, const Tensor& input) {
  constexpr auto kind = OperationKind::all_gather_uneven;
  check_tensor(input, "input", kind);
  const Tensor& own = own_block(outputs, "outputs", input, kind);
  LOCKSTEP_CHECK(input.numel() == own.numel(), "[{}] input {} has {} elements; expected {}, those of outputs[{}] {}",
                 name(kind), to_string(input.sizes()), input.numel(), own.numel(), rank(), to_string(own.sizes()));
  check_distinct(outputs, {input}, own, input, kind);
  return issue({.kind = kind, .input = input, .output = own, .output_counts = counts_of(outputs), .outputs = outputs});
}

WorkPtr ProcessGroup::gather(const Blocks& outputs, const Tensor& input, int root) {
  constexpr auto kind = OperationKind::gather;
  check_rank(root, "root", kind);
  check_tensor(input, "input", kind);
  if (rank() != root) return issue({.kind = kind, .input = input, .peer = root});
  const Tensor& own = own_block(outputs, "outputs", input, kind);
  check_same_size(outputs, "outputs", input, "input", kind);
  check_distinct(outputs, {input}, own, input, kind);
  return issue({.kind = kind, .input = input, .output = own, .peer = root, .outputs = outputs});
}

WorkPtr ProcessGroup::gather(std::initializer_list<Tensor> outputs, const Tensor& input, int root) {
  return gather(Blocks(outputs), input, root);
}

WorkPtr ProcessGroup::scatter(const Tensor& output, const Blocks& inputs, int root) {
  constexpr auto kind = OperationKind::scatter;
  check_rank(root, "root", kind);
  check_tensor(output, "output", kind);
  if (rank() != root) return issue({.kind = kind, .output = output, .peer = root});
  const Tensor& own = own_block(inputs, "inputs", output, kind);
  check_same_size(inputs, "inputs", output, "output", kind);
  check_distinct({output}, inputs, output, own, kind);
  return issue({.kind = kind, .input = own, .output = output, .peer = root, .inputs = inputs});
}

WorkPtr ProcessGroup::scatter(const Tensor& output, std::initializer_list<Tensor> inputs, int root) {
  return scatter(output, Blocks(inputs), root);
}

WorkPtr ProcessGroup::reduce_scatter(const Tensor& output, const Blocks& inputs, ReduceOp op) {
  constexpr auto kind = OperationKind::reduce_scatter;
  check_tensor(output, "output", kind);
  const Tensor& own = own_block(inputs, "inputs", output, kind);
  check_reduction(output, op, kind);
  LOCKSTEP_CHECK(own.numel() == output.numel(), "[{}] output {} has {} elements; expected {}, those of inputs[{}] {}",
                 name(kind), to_string(output.sizes()), output.numel(), own.numel(), rank(), to_string(own.sizes()));
  check_distinct({output}, inputs, output, own, kind);
  return issue({.kind = kind, .input = own, .output = output, .reduce = op, .inputs = inputs});
}

WorkPtr ProcessGroup::all_to_all(const Blocks& outputs, const Blocks& inputs) {
  constexpr auto kind = OperationKind::all_to_all_uneven;
  const Tensor& from = own_block(inputs, "inputs", {}, kind);
  const Tensor& to = own_block(outputs, "outputs", from, kind);
  LOCKSTEP_CHECK(from.numel() == to.numel(), "[{}] rank {} gives itself {} elements and takes {}; expected as many",
                 name(kind), rank(), from.numel(), to.numel());
  check_distinct(outputs, inputs, to, from, kind);
  return issue({.kind = kind,
                .input = from,
                .output = to,
                .input_counts = counts_of(inputs),
                .output_counts = counts_of(outputs),
                .inputs = inputs,
                .outputs = outputs});
}

}  // namespace lockstep::distributed
