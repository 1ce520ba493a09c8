#include "lockstep/distributed/parallel/reduction/shard_sums.h"

#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "lockstep/distributed/parallel/shares.h"

namespace lockstep::distributed {
namespace {

// On a device, one addition after the other; the same roundings as tree_sum().
void sum_parts_on_device(const Tensor& target, const ShardSums::Parts& parts, double divisor) {
  TreeStack<Tensor> stack;
  for (std::size_t i = 0; i < parts.nodes.size(); ++i)
    stack.push(parts.nodes[i], parts.tensors[i].detach().reshape({target.numel()}),
               [](Tensor& left, const Tensor& right) { left = add_values(left, right); });
  LOCKSTEP_CHECK(stack.entries().size() == 1, "[lockstep] {} parts leave {} nodes of the shard tree; expected one",
                 parts.nodes.size(), stack.entries().size());
  const Tensor sum = stack.entries().front().value;
  const NoGradGuard no_grad;
  copy_values(divisor == 1.0 ? sum : sum / divisor, target.as_strided({target.numel()}, {1}, target.offset()));
}

}  // namespace

std::vector<nn::NamedTensor> trained_parameters(const nn::Module& module) {
  std::vector<nn::NamedTensor> trained = module.named_parameters();
  std::erase_if(trained, [](const nn::NamedTensor& each) { return !each.tensor.requires_grad(); });
  return trained;
}

void add_rows(std::vector<double>& left, const std::vector<double>& right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

ShardSums::ShardSums(nn::Module& module, std::int64_t shards, ShardRange mine)
    : ShardSums(module, {trained_parameters(module)}, shards, mine) {}

ShardSums::ShardSums(nn::Module& module, const std::vector<std::vector<nn::NamedTensor>>& groups, std::int64_t shards,
                     ShardRange mine)
    : shards_(shards),
      mine_(mine),
      layout_(module),
      buffers_(module.named_buffers()),
      module_parameters_(module.named_parameters()) {
  for (const std::vector<nn::NamedTensor>& group : groups) {
    groups_.push_back({.first = parameters_.size(), .count = group.size()});
    parameters_.insert(parameters_.end(), group.begin(), group.end());
  }
  zeros_.resize(parameters_.size());
}

void ShardSums::clear() {
  for (Group& group : groups_) {
    group.sums.clear();
    group.next = mine_.begin;
  }
  total_sums_.clear();
  next_total_ = mine_.begin;
  totals_.clear();
  last_gradients_.assign(parameters_.size(), {});
  last_ = -1;
}

void ShardSums::begin() {
  clear();
  used_.assign(parameters_.size(), false);
  for (const nn::NamedTensor& parameter : parameters_) parameter.tensor.set_grad({});
  versions_ = versions();
}

void ShardSums::add_totals(std::int64_t shard, double loss_sum, double count,
                           const nn::DeferredStatistics& statistics) {
  add_totals(shard, layout_.row(loss_sum, count, statistics));
}

void ShardSums::add_totals(std::int64_t shard, std::vector<double> row) {
  total_sums_.push({0, shard}, std::move(row), add_rows);
  next_total_ = shard + 1;
}

void ShardSums::keep(std::int64_t shard, std::size_t index) {
  Group& group = groups_[index];
  Gradients gradients(group.count);
  for (std::size_t i = 0; i < group.count; ++i) {
    const std::size_t p = group.first + i;
    take(p);
    gradients[i] = std::exchange(last_gradients_[p], {});
    if (!gradients[i].defined()) gradients[i] = zeros_like(parameters_[p].tensor.detach());
  }
  group.sums.push({0, shard}, std::move(gradients), [](Gradients& left, const Gradients& right) {
    for (std::size_t p = 0; p < left.size(); ++p) add_values_(left[p], right[p]);
  });
  group.next = shard + 1;
}

void ShardSums::close(std::int64_t last) {
  check_unchanged();
  last_ = last;
  for (std::int64_t shard = next_total_; shard < mine_.end; ++shard)
    total_sums_.push({0, shard}, std::vector<double>(layout_.size(), 0.0), add_rows);
  for (const auto& entry : total_sums_.entries()) totals_.push_back(entry.value);
}

void ShardSums::note_rows(const data::Batch& part) {
  rows_.clear();
  part.for_each([&](const char* name, const Tensor& tensor) {
    Shape sizes = tensor.sizes();
    sizes.erase(0);
    rows_ +=
        fmt::format("{}'{}' {} {}", rows_.empty() ? "" : ", ", name, lockstep::name(tensor.dtype()), to_string(sizes));
  });
  Checksum sum;
  sum.update(rows_.data(), rows_.size());
  const auto shards = static_cast<std::int64_t>(shards_of_part(part.global_size, shards_, mine_).size());
  layout_.add_kind(totals_.front(), shards, sum.value(), shards_);
}

void ShardSums::check_rows(std::span<const double> totals) const {
  LOCKSTEP_CHECK(layout_.one_kind(totals),
                 "[lockstep] the logical shards of this batch differ between the ranks in the names, dtypes or sizes "
                 "of their rows, which then depend on the number of ranks; those of this rank are {}. A collate_fn "
                 "must pad to a length that does not depend on the batch, and make the same tensors for every shard",
                 rows_.empty() ? "nothing" : rows_);
}

void ShardSums::take(std::size_t parameter) {
  const Tensor& leaf = parameters_[parameter].tensor;
  last_gradients_[parameter] = leaf.grad();
  leaf.set_grad({});
  if (last_gradients_[parameter].defined()) used_[parameter] = true;
}

void ShardSums::take_all() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) take(p);
}

const Tensor& ShardSums::zeros_of(std::size_t parameter) {
  Tensor& zeros = zeros_[parameter];
  if (!zeros.defined()) zeros = zeros_like(parameters_[parameter].tensor.detach());
  return zeros;
}

ShardSums::Parts ShardSums::parts(std::size_t parameter) {
  Parts parts;
  const auto add = [&](const Tensor& tensor, const TreeNode& node) {
    parts.tensors.push_back(tensor.defined() ? tensor : zeros_of(parameter));
    parts.nodes.push_back(node);
  };
  std::size_t g = 0;
  while (parameter >= groups_[g].first + groups_[g].count) ++g;
  const Group& group = groups_[g];
  for (const auto& entry : group.sums.entries()) add(entry.value[parameter - group.first], entry.node);
  std::int64_t next = group.next;
  if (last_ >= 0) {
    add(last_gradients_[parameter], {0, last_});
    next = last_ + 1;
  }
  for (; next < mine_.end; ++next) add({}, {0, next});
  return parts;
}

std::vector<std::uint32_t> ShardSums::versions() const {
  std::vector<std::uint32_t> versions;
  for (const nn::NamedTensor& buffer : buffers_) versions.push_back(buffer.tensor.storage()->version());
  for (const nn::NamedTensor& parameter : module_parameters_) versions.push_back(parameter.tensor.storage()->version());
  return versions;
}

void ShardSums::check_unchanged() const {
  const std::vector<std::uint32_t> after = versions();
  for (std::size_t b = 0; b < buffers_.size(); ++b)
    LOCKSTEP_CHECK(versions_[b] == after[b],
                   "[lockstep] forward() changed the buffer '{}', whose value would then depend on the number of "
                   "workers; only batch norm's running statistics can be combined in lockstep mode",
                   buffers_[b].name);
  for (std::size_t p = 0; p < module_parameters_.size(); ++p)
    LOCKSTEP_CHECK(versions_[buffers_.size() + p] == after[buffers_.size() + p],
                   "[lockstep] forward() changed the parameter '{}', as an Embedding's max_norm does; its value would "
                   "then depend on the number of workers; change parameters between the steps",
                   module_parameters_[p].name);
}

ShardSums::Parts parts_inside(const ShardSums::Parts& parts, const TreeNode& unit) {
  ShardSums::Parts inside;
  for (std::size_t i = 0; i < parts.nodes.size(); ++i) {
    const TreeNode& node = parts.nodes[i];
    if (node.level > unit.level || node.index >> (unit.level - node.level) != unit.index) continue;
    inside.nodes.push_back(node);
    inside.tensors.push_back(parts.tensors[i]);
  }
  return inside;
}

void sum_parts(const Tensor& target, const ShardSums::Parts& parts, double divisor) {
  if (target.device().is_cuda()) return sum_parts_on_device(target, parts, divisor);
  constexpr std::int64_t kBlock = 1 << 15;
  const LibraryAccess access;
  std::vector<const std::byte*> starts;
  for (const Tensor& tensor : parts.tensors) starts.push_back(static_cast<const std::byte*>(tensor.raw_data()));
  auto* const out = static_cast<std::byte*>(target.raw_data());
  const std::size_t element = element_size(target.dtype());
  parallel_for(target.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t at = static_cast<std::size_t>(begin) * element;
    std::vector<const void*> blocks;
    for (const std::byte* start : starts) blocks.push_back(start + at);
    tree_sum(target.dtype(), out + at, blocks, parts.nodes, end - begin, divisor);
  });
}

}  // namespace lockstep::distributed
