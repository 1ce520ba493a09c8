#include "lockstep/distributed/tensor_parallel/tensor_shards.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {
namespace {

void add_to_left(Tensor& left, const Tensor& right) {
  left = add(left, right);
}

/// Of ranks whose blocks [outer, tokens, width] lie one after the other in memory, and within [outer, all tokens,
/// width].
struct TokenBlocks {
  TokenBlocks(const Shape& whole, std::int64_t ranks)
      : outer(1), tokens(whole[whole.dim() - 2] / ranks), width(whole[whole.dim() - 1]), ranks(ranks) {
    for (int d = 0; d + 2 < whole.dim(); ++d) outer *= whole[d];
  }

  std::int64_t size() const { return outer * tokens * width; }
  Tensor among_blocks(const Tensor& t, std::int64_t rank) const {
    return t.as_strided({outer, tokens, width}, {tokens * width, width, 1}, t.offset() + rank * size());
  }
  Tensor among_tokens(const Tensor& t, std::int64_t rank) const {
    return t.as_strided({outer, tokens, width}, {ranks * tokens * width, width, 1}, t.offset() + rank * tokens * width);
  }

  std::int64_t outer, tokens, width, ranks;
};

Shape with_tokens(Shape sizes, std::int64_t tokens) {
  sizes[sizes.dim() - 2] = tokens;
  return sizes;
}

}  // namespace

TensorShards::TensorShards(ProcessGroupPtr group, std::int64_t logical)
    : group_(std::move(group)), lockstep_(logical > 0) {
  LOCKSTEP_CHECK(group_, "[TensorParallel] the process group is null");
  const int world = group_->world_size();
  if (lockstep_) {
    check_shards(logical, world, "TensorParallel");
    LOCKSTEP_CHECK(
        logical % world == 0,
        "[TensorParallel] {} tensor shards cannot be divided evenly over {} ranks; use a number of ranks that "
        "divides them",
        logical, world);
  }
  count_ = lockstep_ ? logical : world;
  mine_ = shards_of_worker(count_, world, group_->rank());
}

SizeRun TensorShards::run_of(std::int64_t size, int rank) const {
  return divided(size).runs(shards_of_worker(count_, group_->world_size(), rank));
}

DividedSize TensorShards::own_runs(std::int64_t own, const char* what) const {
  LOCKSTEP_CHECK(own >= mine_.size(), "[{}] this rank's {} cannot be divided into {} tensor shards of one or more",
                 what, own, mine_.size());
  return {own, mine_.size()};
}

std::int64_t TensorShards::size_of_whole(std::int64_t own, std::int64_t whole, const char* what) const {
  if (whole == 0) whole = own * group_->world_size();
  const std::int64_t expected = run_of(whole, group_->rank()).size;
  LOCKSTEP_CHECK(own == expected, "[{}] this rank has {} of {}; expected {}, which {} tensor shards leave it", what,
                 own, whole, expected, count_);
  return whole;
}

Tensor TensorShards::Pending::wait() {
  if (!work_) return value_;
  work_->wait();
  return result_();
}

Tensor TensorShards::add_up(std::vector<Tensor> parts) const {
  TreeStack<Tensor> stack;
  for (std::size_t i = 0; i < parts.size(); ++i)
    stack.push({0, mine_.begin + static_cast<std::int64_t>(i)}, std::move(parts[i]), add_to_left);
  LOCKSTEP_ASSERT(stack.entries().size() == 1, "{} shards leave {} sums", mine_.size(), stack.entries().size());
  return stack.entries().front().value;
}

TensorShards::Pending TensorShards::begin_sum(std::vector<Tensor> parts) const {
  const NoGradGuard values_only;
  return sum_over_ranks(add_up(std::move(parts)));
}

Tensor TensorShards::sum_of_one(const Tensor& own) const {
  const NoGradGuard values_only;
  // As in the tree's sums, -0 becomes +0 where a shard without the value is added.
  return sum_over_ranks(mine_.size() > 1 ? add(own, 0.0) : own).wait();
}

TensorShards::Pending TensorShards::sum_over_ranks(Tensor own) const {
  if (group_->world_size() == 1) return Pending(std::move(own));
  static const OperationLabel label("sum over tensor shards");
  const LabelScope scope(label);
  WorkPtr work = lockstep_ ? group_->all_reduce_tree(own, own, count_) : group_->all_reduce(own);
  return {std::move(work), [own = std::move(own)] { return own; }};
}

void TensorShards::max(const Tensor& values) const {
  if (group_->world_size() == 1) return;
  static const OperationLabel label("largest of tensor shards");
  const LabelScope scope(label);
  group_->all_reduce(values, ReduceOp::max)->wait();
}

void TensorShards::check_alike(const Tensor& integers, const char* what) const {
  if (group_->world_size() == 1 || !integers.device().is_cpu() || checks_left_ <= 0) return;
  --checks_left_;
  const std::vector<std::int64_t> values = integers.to(kInt64).to_vector<std::int64_t>();
  Checksum sum;
  sum.update(values.data(), values.size() * sizeof(std::int64_t));
  static const OperationLabel label("integers that ranks have alike");
  const LabelScope scope(label);
  const std::vector<std::int64_t> sums = all_gather_integers(static_cast<std::int64_t>(sum.value()), *group_);
  LOCKSTEP_CHECK(std::ranges::count(sums, sums.front()) == std::ssize(sums),
                 "[TensorParallel] the ranks that hold layers together were given different {}; give all of them the "
                 "same samples, and what divides a batch the ranks along `data` alone",
                 what);
}

TensorShards::Pending TensorShards::begin_sum_of_own_tokens(std::vector<Tensor> parts) const {
  const NoGradGuard values_only;
  const Tensor whole = as_contiguous(add_up(std::move(parts)));
  const std::int64_t ranks = group_->world_size();
  LOCKSTEP_CHECK(whole.dim() >= 2 && whole.size(-2) % count_ == 0,
                 "[TensorParallel] the tokens of {} cannot be divided evenly into {} tensor shards",
                 to_string(whole.sizes()), count_);
  if (ranks == 1) return Pending(whole);
  const TokenBlocks blocks(whole.sizes(), ranks);
  Tensor packed = whole;
  if (blocks.outer > 1) {
    packed = empty(whole.sizes(), options_of(whole));
    for (std::int64_t r = 0; r < ranks; ++r) copy_values(blocks.among_tokens(whole, r), blocks.among_blocks(packed, r));
  }
  static const OperationLabel label("sum over tensor shards, of each rank's tokens");
  const LabelScope scope(label);
  const Shape sizes = with_tokens(whole.sizes(), blocks.tokens);
  if (!lockstep_) {
    const Tensor own = empty(sizes, options_of(whole));
    WorkPtr work = group_->reduce_scatter(own, packed);
    return {std::move(work), [own, packed] { return own; }};
  }
  const Tensor received = empty(whole.sizes(), options_of(whole));
  WorkPtr work = group_->all_to_all(received, packed);
  return {std::move(work), [this, received, packed, blocks, sizes, ranks] {
            const NoGradGuard values_only;
            TreeNode node;
            for (std::int64_t shards = mine_.size(); shards > 1; shards /= 2) ++node.level;
            TreeStack<Tensor> stack;
            for (; node.index < ranks; ++node.index)
              stack.push(
                  node,
                  received.as_strided(sizes, contiguous_strides(sizes), received.offset() + node.index * blocks.size()),
                  add_to_left);
            return stack.entries().front().value;
          }};
}

TensorShards::Pending TensorShards::begin_all_tokens(const Tensor& own) const {
  const NoGradGuard values_only;
  const Tensor mine = as_contiguous(own.detach());
  const std::int64_t ranks = group_->world_size();
  if (ranks == 1) return Pending(mine);
  const Shape sizes = with_tokens(mine.sizes(), mine.size(-2) * ranks);
  const Tensor gathered = empty(sizes, options_of(mine));
  static const OperationLabel label("all ranks' tokens");
  const LabelScope scope(label);
  WorkPtr work = group_->all_gather(gathered, mine);
  return {std::move(work), [gathered, mine, sizes, ranks] {
            const NoGradGuard values_only;
            const TokenBlocks blocks(sizes, ranks);
            if (blocks.outer == 1) return gathered;
            const Tensor whole = empty(sizes, options_of(gathered));
            for (std::int64_t r = 0; r < ranks; ++r)
              copy_values(blocks.among_blocks(gathered, r), blocks.among_tokens(whole, r));
            return whole;
          }};
}

Tensor TensorShards::own_tokens(const Tensor& whole) const {
  LOCKSTEP_CHECK(whole.dim() >= 2 && whole.size(-2) % count_ == 0,
                 "[TensorParallel] the tokens of {} cannot be divided evenly into {} tensor shards",
                 to_string(whole.sizes()), count_);
  const NoGradGuard values_only;
  const Tensor all = as_contiguous(whole.detach());
  const TokenBlocks blocks(all.sizes(), group_->world_size());
  const Tensor own = empty(with_tokens(all.sizes(), blocks.tokens), options_of(all));
  copy_values(blocks.among_tokens(all, group_->rank()), blocks.among_blocks(own, 0));
  return own;
}

}  // namespace lockstep::distributed
