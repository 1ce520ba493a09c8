#include "lockstep/distributed/parallel/sharding/sharded_reduction.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep::distributed {
namespace {

// How a flat's blocks travel, and become this rank's block of the result.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Rows of a flat's elements that this rank gives.
  virtual std::int64_t rows() const = 0;
  /// Writes a gradient, perhaps undefined, or what shards have left of it, into memory [ranks, rows, block].
  virtual void collect(const Tensor& memory, const Flat& flat, std::size_t member, const Tensor& parameter) = 0;
  virtual WorkPtr send(const Tensor& received, const Tensor& memory) = 0;
  virtual std::int64_t received_rows() const = 0;
  /// Divided by the count of all losses, if `divides` and if the mean over the ranks is not taken anyway.
  virtual Tensor result(const Tensor& received, std::int64_t block, bool divides) = 0;
  virtual bool takes_mean() const = 0;
};

// Calls body(rank, from, at, size) for the parts of a member that lie in one rank's block each: `size` elements from
// `from` on of the member stand at `at` of that block.
template <typename Body>
void for_each_block(const Flat& flat, std::size_t member, Body&& body) {
  const std::int64_t begin = flat.offsets[member], end = flat.offsets[member + 1];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t rank = at / flat.block;
    const std::int64_t stop = std::min(end, (rank + 1) * flat.block);
    body(rank, at - begin, at - rank * flat.block, stop - at);
    at = stop;
  }
}

class MeanExchange final : public Exchange {
 public:
  explicit MeanExchange(ProcessGroupPtr group) : group_(std::move(group)) {}
  std::int64_t rows() const override { return 1; }
  std::int64_t received_rows() const override { return 1; }
  void collect(const Tensor& memory, const Flat& flat, std::size_t member, const Tensor& parameter) override {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) return;  // the memory is zeros
    copy_values(grad.detach().reshape({grad.numel()}), elements_of(memory, flat.offsets[member], grad.numel()));
    parameter.set_grad({});
  }
  WorkPtr send(const Tensor& received, const Tensor& memory) override {
    return group_->reduce_scatter(received, memory, ReduceOp::avg);
  }
  Tensor result(const Tensor& received, std::int64_t, bool) override { return received; }
  bool takes_mean() const override { return true; }

 private:
  ProcessGroupPtr group_;
};

class TreeExchange final : public Exchange {
 public:
  TreeExchange(ProcessGroupPtr group, RankReduction& whole, ShardSums& sums)
      : group_(std::move(group)), whole_(whole), sums_(sums) {
    for (int r = 0; r < group_->world_size(); ++r) {
      const std::vector<TreeNode> units = tree_units(shards_of_worker(sums.shards(), group_->world_size(), r));
      if (r == group_->rank()) mine_ = units;
      nodes_.insert(nodes_.end(), units.begin(), units.end());
      units_.push_back(static_cast<std::int64_t>(units.size()));
    }
  }
  std::int64_t rows() const override { return static_cast<std::int64_t>(mine_.size()); }
  std::int64_t received_rows() const override { return static_cast<std::int64_t>(nodes_.size()); }

  void collect(const Tensor& memory, const Flat& flat, std::size_t member, const Tensor&) override {
    const std::size_t p = flat.members[member];
    sums_.take(p);
    const ShardSums::Parts parts = sums_.parts(p);
    for (std::size_t u = 0; u < mine_.size(); ++u) {
      const ShardSums::Parts inside = parts_inside(parts, mine_[u]);
      for_each_block(flat, member, [&](std::int64_t rank, std::int64_t from, std::int64_t at, std::int64_t size) {
        ShardSums::Parts slice{{}, inside.nodes};
        for (const Tensor& part : inside.tensors) slice.tensors.push_back(elements_of(as_contiguous(part), from, size));
        const std::int64_t row = rank * rows() + static_cast<std::int64_t>(u);
        sum_parts(elements_of(memory, row * flat.block + at, size), slice);
      });
    }
  }

  WorkPtr send(const Tensor& received, const Tensor& memory) override {
    const std::int64_t block = received.numel() / received_rows();
    std::vector<std::int64_t> gives(units_.size(), rows() * block), takes;
    for (const std::int64_t units : units_) takes.push_back(units * block);
    return group_->all_to_all_uneven(received, memory, takes, gives);
  }

  bool takes_mean() const override { return false; }
  Tensor result(const Tensor& received, std::int64_t block, bool divides) override {
    ShardSums::Parts parts{{}, nodes_};
    for (std::int64_t row = 0; row < received_rows(); ++row)
      parts.tensors.push_back(elements_of(received, row * block, block));
    const Tensor sum = empty({block}, options_of(received));
    sum_parts(sum, parts, divides ? whole_.total_count() : 1.0);
    return sum;
  }

 private:
  ProcessGroupPtr group_;
  RankReduction& whole_;
  ShardSums& sums_;
  std::vector<TreeNode> mine_, nodes_;  // of this rank, of all
  std::vector<std::int64_t> units_;     // by rank
};

constexpr std::size_t kOnTheirWay = 2;  // buckets

class ShardedReduction final : public RankReduction {
 public:
  ShardedReduction(ProcessGroupPtr group, std::shared_ptr<Division> division, std::unique_ptr<RankReduction> whole,
                   ShardSums* sums)
      : group_(std::move(group)), division_(std::move(division)), whole_(std::move(whole)) {
    if (sums)
      exchange_ = std::make_unique<TreeExchange>(group_, *whole_, *sums);
    else
      exchange_ = std::make_unique<MeanExchange>(group_);
  }

  void allocate(Bucket&, std::int64_t, const TensorOptions&, std::int64_t) override {}
  void clear_gradients(const std::vector<Bucket>&, const std::vector<nn::NamedTensor>& parameters) override {
    abandon();
    division_->clear_gradients();
    for (const nn::NamedTensor& each : parameters) each.tensor.set_grad({});
  }

  void collect(Bucket& bucket, std::size_t i, const Tensor& parameter) override {
    const Flat& flat = division_->flats[bucket.described.index];
    if (!bucket.memory.defined())
      bucket.memory = zeros({division_->world * exchange_->rows() * flat.block}, flat.options);
    exchange_->collect(bucket.memory, flat, i, parameter);
  }

  WorkPtr launch(Bucket& bucket, const std::vector<bool>& used) override {
    // Where parameters are divided too, or layers are spread over stages, without waiting: others may need what this
    // rank gathers or computes next before they can take part. Else few are on their way, so that whole gradients do
    // not pile up where sending takes longer.
    const bool may_wait = !division_->values_too && !division_->of_part;
    while (!on_their_way_.empty() && (!on_their_way_.front().work || on_their_way_.front().work->is_completed() ||
                                      (may_wait && on_their_way_.size() >= kOnTheirWay)))
      finish_one();
    OnTheWay next{bucket.described.index, std::exchange(bucket.memory, {}), nullptr};
    const Flat& flat = division_->flats[next.flat];
    if (group_->world_size() > 1 && flat.block > 0) {
      const Tensor memory =
          std::exchange(next.received, empty({exchange_->received_rows() * flat.block}, flat.options));
      next.work = exchange_->send(next.received, memory);
    }
    on_their_way_.push_back(std::move(next));
    if (!bucket.is_last()) return nullptr;
    use_ = tensor(std::vector<std::int32_t>(used.begin(), used.end()));
    static const OperationLabel label("which parameters were used");
    const LabelScope scope(label);
    return use_work_ = group_->all_reduce(use_, ReduceOp::max);
  }

  void finish() override {
    while (!on_their_way_.empty()) finish_one();
    const NoGradGuard no_grad;
    for (const std::size_t flat : std::exchange(undivided_, {}))
      division_->flats[flat].gradient.div_(whole_->total_count());
  }

  bool keeps_gradients() const override { return false; }

  void abandon() override {
    on_their_way_.clear();
    undivided_.clear();
    use_work_.reset();
    counted_ = false;
  }

  std::vector<bool> used_anywhere() override {
    std::exchange(use_work_, nullptr)->wait();
    std::vector<bool> used;
    for (const double each : use_.to_vector<double>()) used.push_back(each != 0.0);
    for (std::size_t p = 0; p < used.size(); ++p)
      if (used[p]) division_->has_gradient[p] = true;
    return used;
  }

  void sum_losses(const StepRunner& runner, std::int64_t samples) override {
    whole_->sum_losses(runner, samples);
    counted_ = true;
  }
  double divisor(const StepRunner& runner, std::int64_t samples) override { return whole_->divisor(runner, samples); }
  double total_count() override { return whole_->total_count(); }
  Tensor mean_loss() override { return whole_->mean_loss(); }

 private:
  struct OnTheWay {
    std::size_t flat;
    Tensor received;
    WorkPtr work;
  };

  void finish_one() {
    const OnTheWay first = std::move(on_their_way_.front());
    on_their_way_.pop_front();
    Flat& flat = division_->flats[first.flat];
    const LabelScope label(flat.label);
    if (first.work) first.work->wait();
    if (flat.block == 0) return;
    const Tensor block = exchange_->result(first.received, flat.block, counted_);
    if (!counted_ && !exchange_->takes_mean()) undivided_.push_back(first.flat);
    if (flat.gradient.defined())
      add_values_(flat.gradient, block);
    else
      flat.gradient = block;
  }

  ProcessGroupPtr group_;
  std::shared_ptr<Division> division_;
  std::unique_ptr<RankReduction> whole_;
  std::unique_ptr<Exchange> exchange_;
  std::deque<OnTheWay> on_their_way_;
  std::vector<std::size_t> undivided_;  // flats that came before it was known what the losses count
  bool counted_ = false;                // that is known
  Tensor use_;                          // [parameters]
  WorkPtr use_work_;
};

}  // namespace

std::unique_ptr<RankReduction> sharded_reduction(ProcessGroupPtr group, std::shared_ptr<Division> division,
                                                 std::unique_ptr<RankReduction> whole, ShardSums* sums) {
  return std::make_unique<ShardedReduction>(std::move(group), std::move(division), std::move(whole), sums);
}

}  // namespace lockstep::distributed
