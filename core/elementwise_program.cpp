#include "lockstep/core/elementwise_program.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

using Values = ElementwiseComputation::Values;

/// What an element that was kept costs: it goes to memory and comes back, in the time of so many sums.
constexpr int kCostOfKeeping = 8;
/// Rows of fewer elements are copied side by side instead of being pieces of their own.
constexpr std::int64_t kShortRow = 512;

/// Memory for buffers, of a thread.
template <typename C>
C* scratch(std::size_t count) {
  struct Aligned {
    alignas(64) std::byte bytes[64];
  };
  static thread_local std::vector<Aligned> memory;
  const std::size_t blocks = (count * sizeof(C) + sizeof(Aligned) - 1) / sizeof(Aligned);
  if (memory.size() < blocks) memory.resize(blocks);
  return reinterpret_cast<C*>(memory.data());
}

/// Asks for as many bytes behind those that are about to be read: hardware notices that a row goes on too late.
void prefetch_behind(const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + bytes + i, 0, 2);
}

/// Short rows are copied without a call.
template <typename C>
void copy_row(const C* from, std::int64_t count, C* to) {
  if (count >= kShortRow) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(C));
    return;
  }
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

/// Truths among values, which are 0 or 1.
template <typename C>
void store_truths(const C* values, std::int64_t count, bool* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = values[i] != C(0);
}

}  // namespace

ElementProgram::ElementProgram(std::span<Computation* const> members, bool keep_last) {
  const auto& last = static_cast<const ElementwiseComputation&>(*members.back());
  numel_ = last.sizes_.numel();
  compute_type_ = last.compute_type_;
  for (Computation* const each : members) {
    auto* const computation = static_cast<ElementwiseComputation*>(each);
    Step step;
    step.computation = computation;
    for (const Tensor& operand : computation->inputs()) {
      Source& source = step.sources[static_cast<std::size_t>(step.operands++)];
      const auto made = std::ranges::find_if(
          steps_, [&](const Step& other) { return operand.storage()->computation() == other.computation; });
      source = made != steps_.end() && operand.storage()->is_pending()
                   ? Source{false, static_cast<int>(made - steps_.begin())}
                   : Source{true, add_leaf(operand, computation->sizes_)};
    }
    steps_.push_back(std::move(step));
  }
  choose_kept(keep_last);
  assign_buffers();
}

int ElementProgram::add_leaf(const Tensor& operand, const Shape& sizes) {
  Leaf leaf;
  leaf.tensor = lies_turned(operand) ? copy_contiguous(operand) : operand;
  leaf.data = leaf.tensor.raw_data();
  const auto loop = cpu::plan_loop<1>(sizes, {&leaf.tensor});
  leaf.dense = loop.dense();
  leaf.sizes = loop.sizes;
  leaf.strides = loop.strides[0];
  const auto same = std::ranges::find_if(leaves_, [&](const Leaf& other) {
    return other.data == leaf.data && other.tensor.dtype() == leaf.tensor.dtype() && other.sizes == leaf.sizes &&
           other.strides == leaf.strides;
  });
  if (same != leaves_.end()) return static_cast<int>(same - leaves_.begin());
  const std::int64_t width = leaf.sizes.back();
  if (!leaf.dense && width >= kShortRow && width < numel_) width_ = width_ == 0 ? width : std::min(width_, width);
  leaves_.push_back(std::move(leaf));
  return static_cast<int>(leaves_.size()) - 1;
}

void ElementProgram::choose_kept(bool keep_last) {
  struct Origin {
    int cost = 0;
    std::vector<const Storage*> memory;  // what stays until it is made, beyond small operands
  };
  std::vector<Origin> origins(steps_.size());
  std::vector<std::uint32_t> inner(steps_.size());  // references of the members
  for (const Step& step : steps_)
    for (int i = 0; i < step.operands; ++i)
      if (const Source& source = step.sources[static_cast<std::size_t>(i)]; !source.is_leaf)
        ++inner[static_cast<std::size_t>(source.index)];
  for (std::size_t n = 0; n < steps_.size(); ++n) {
    Step& step = steps_[n];
    ElementwiseComputation& computation = *step.computation;
    Origin& origin = origins[n];
    const std::size_t bytes = static_cast<std::size_t>(numel_) * element_size(computation.dtype_);
    const auto add = [&](const Storage* storage) {
      if (storage->bytes() > bytes / 8 && !std::ranges::count(origin.memory, storage)) origin.memory.push_back(storage);
    };
    origin.cost = computation.cost_;
    for (int i = 0; i < step.operands; ++i) {
      const Source& source = step.sources[static_cast<std::size_t>(i)];
      if (source.is_leaf) {
        add(leaves_[static_cast<std::size_t>(source.index)].tensor.storage().get());
        continue;
      }
      const auto from = static_cast<std::size_t>(source.index);
      if (steps_[from].kept.defined()) {
        add(steps_[from].kept.storage().get());
        continue;
      }
      origin.cost += origins[from].cost;
      for (const Storage* each : origins[from].memory) add(each);
    }
    const bool is_last = n + 1 == steps_.size();
    std::size_t memory = 0;
    for (const Storage* each : origin.memory) memory += each->bytes();
    const bool is_held = computation.holders_of(0) > inner[n];
    const bool is_dear = origin.cost * (computation.times_ + 1) > kCostOfKeeping || memory > bytes + bytes / 4;
    if (is_last ? keep_last || is_dear : is_held && is_dear) {
      step.kept = computation.empty_result();
      step.to = step.kept.raw_data();
    } else {
      ++computation.times_;
    }
  }
}

void ElementProgram::assign_buffers() {
  const auto is_own = [&](const Step& step) { return step.computation->dtype_ == compute_type_; };
  std::vector<std::size_t> last_use(steps_.size(), 0);
  for (std::size_t n = 0; n < steps_.size(); ++n)
    for (int i = 0; i < steps_[n].operands; ++i)
      if (const Source& source = steps_[n].sources[static_cast<std::size_t>(i)]; !source.is_leaf)
        last_use[static_cast<std::size_t>(source.index)] = n;
  std::vector<int> free;
  for (Leaf& leaf : leaves_)
    if (!leaf.dense || leaf.tensor.dtype() != compute_type_) leaf.buffer = buffers_++;
  for (std::size_t n = 0; n < steps_.size(); ++n) {
    Step& step = steps_[n];
    const bool in_place = step.kept.defined() && is_own(step);
    if (!in_place && n + 1 < steps_.size()) {
      if (free.empty()) {
        step.buffer = buffers_++;
      } else {
        step.buffer = free.back();
        free.pop_back();
      }
    }
    for (std::size_t m = 0; m < n; ++m)
      if (last_use[m] == n && steps_[m].buffer >= 0) free.push_back(steps_[m].buffer);
  }
}

template <typename C>
Values ElementProgram::leaf_values(const Leaf& leaf, std::int64_t begin, std::int64_t count, C* buffer) const {
  const DType dtype = leaf.tensor.dtype();
  const bool is_own = dtype == dtype_of<C>;
  if (leaf.dense) {
    const char* const from = cpu::element_address(leaf.data, begin, dtype);
    prefetch_behind(from, static_cast<std::size_t>(count) * element_size(dtype));
    if (is_own) return {from, false};
    cpu::load_row(dtype, from, 1, count, buffer);
    return {buffer, false};
  }
  const int last = leaf.sizes.dim() - 1;
  const std::int64_t width = leaf.sizes[last], stride = leaf.strides[last];
  std::int64_t row = begin / width, column = begin - row * width;
  const auto row_begin = [&] {
    std::int64_t offset = 0, rest = row;
    for (int d = last - 1; d > 0; rest /= leaf.sizes[d], --d) offset += rest % leaf.sizes[d] * leaf.strides[d];
    return last > 0 ? offset + rest * leaf.strides[0] : offset;
  };
  if (column + count <= width) {
    const char* const from = cpu::element_address(leaf.data, row_begin() + column * stride, dtype);
    if (is_own && stride <= 1) return {from, stride == 0};
    cpu::load_row(dtype, from, stride, stride == 0 ? 1 : count, buffer);
    return {buffer, stride == 0};
  }
  std::int64_t offset = row_begin();
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t length = std::min(width - column, count - done);
    const char* const from = cpu::element_address(leaf.data, offset + column * stride, dtype);
    C* const to = buffer + done;
    if (is_own && stride <= 1) {
      const C* const values = reinterpret_cast<const C*>(from);
      if (stride == 0)
        std::fill_n(to, length, *values);
      else
        copy_row(values, length, to);
    } else if (stride == 0) {
      C value;
      cpu::load_row(dtype, from, 1, 1, &value);
      std::fill_n(to, length, value);
    } else {
      cpu::load_row(dtype, from, stride, length, to);
    }
    done += length;
    column = 0;
    ++row;
    offset = last == 1 ? offset + leaf.strides[0] : row_begin();
  }
  return {buffer, false};
}

template <typename C>
const C* ElementProgram::run_piece(std::int64_t begin, std::int64_t count, C* out) const {
  constexpr std::size_t kMost = static_cast<std::size_t>(ElementwiseComputation::kMostSteps) + 1;
  std::array<Values, kMost * ElementwiseComputation::kMostOperands> from_leaf;
  std::array<C*, kMost> made;
  C* const buffers = scratch<C>(static_cast<std::size_t>(buffers_ * kPiece));
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    from_leaf[i] = leaf_values(leaves_[i], begin, count, buffers + std::max(leaves_[i].buffer, 0) * kPiece);
  for (std::size_t n = 0; n < steps_.size(); ++n) {
    const Step& step = steps_[n];
    const DType dtype = step.computation->dtype_;
    Values operands[ElementwiseComputation::kMostOperands];
    for (int i = 0; i < step.operands; ++i) {
      const Source& source = step.sources[static_cast<std::size_t>(i)];
      const auto index = static_cast<std::size_t>(source.index);
      operands[i] = source.is_leaf ? from_leaf[index] : Values{made[index], false};
    }
    const bool is_own = dtype == dtype_of<C>;
    made[n] = step.kept.defined() && is_own ? static_cast<C*>(step.to) + begin
              : step.buffer >= 0            ? buffers + step.buffer * kPiece
                                            : out;
    step.computation->apply(operands, made[n], count);
    if (!is_own && step.to) store_truths(made[n], count, static_cast<bool*>(step.to) + begin);
  }
  return made[steps_.size() - 1];
}

template <typename C>
const C* ElementProgram::run(std::int64_t begin, std::int64_t count, C* out) const {
  const C* first = nullptr;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t at = begin + done;
    std::int64_t length = std::min(kPiece, count - done);
    if (width_ > 0) length = std::min(length, width_ - at % width_);
    const C* const values = run_piece(at, length, out + done);
    if (done == 0) first = values;
    done += length;
  }
  return first;
}

void ElementProgram::run_all() const {
  constexpr std::int64_t kBlockCost = 100000;  // some ten microseconds
  std::int64_t cost = 0;
  for (const Step& step : steps_) cost += step.computation->cost_;
  const std::int64_t block = std::clamp(kBlockCost / cost, 2 * kPiece, cpu::kElementBlock);
  const auto run_as = [&]<typename C>() {
    parallel_for(numel_, block, [&](std::int64_t begin, std::int64_t end) {
      C out[kPiece];  // where the result is of another type
      for (std::int64_t at = begin; at < end; at += kPiece) run<C>(at, std::min(kPiece, end - at), out);
    });
  };
  compute_type_ == kFloat64 ? run_as.operator()<double>() : run_as.operator()<float>();
}

void ElementProgram::deliver() {
  for (Step& step : steps_)
    if (step.kept.defined()) step.computation->deliver_kept(std::move(step.kept));
}

template const float* ElementProgram::run(std::int64_t, std::int64_t, float*) const;
template const double* ElementProgram::run(std::int64_t, std::int64_t, double*) const;

}  // namespace lockstep
