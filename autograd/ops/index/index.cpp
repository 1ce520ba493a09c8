#include "lockstep/autograd/ops/index/index.h"

#include <algorithm>
#include <numeric>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// An index made into row numbers of x with its indexed dimensions in front.
struct Plan {
  Shape order;            // x's dimensions, the indexed ones first
  std::int64_t rows = 1;  // product of the indexed sizes
  Shape rest;             // sizes of the others
  Tensor positions;       // int64 [n]: rows of x
  Shape positions_sizes;  // their shape
  int place = 0;          // where it stands in the result: so many of the other dimensions come before it

  /// Takes in the positions of a further part, of `size`; those that do not fit become -1.
  void add(const Tensor& at, std::int64_t size, bool fits, const char* op) {
    rows *= size;
    positions_sizes = broadcast_shapes(positions_sizes, at.sizes(), op);
    const Tensor here = fits ? at : where((at >= 0) * (at < size), at, -1);
    if (!positions.defined()) {
      positions = here;
      return;
    }
    const Tensor linear = positions * size + here;
    positions = fits ? linear : where((positions >= 0) * (here >= 0), linear, -1);
  }
  /// x as [rows, rest...].
  Tensor front(const Tensor& x) const {
    Shape sizes{rows};
    for (const std::int64_t size : rest) sizes.push_back(size);
    return x.permute(order).reshape(sizes);
  }
  /// And back.
  Tensor back(const Tensor& front, const Tensor& x) const {
    Shape sizes, inverse = order;
    for (int d = 0; d < order.dim(); ++d) {
      sizes.push_back(x.sizes()[static_cast<int>(order[d])]);
      inverse[static_cast<int>(order[d])] = d;
    }
    return front.reshape(sizes).permute(inverse);
  }
  /// Sizes of the result, with the positions' dimensions in front.
  Shape front_sizes() const {
    Shape sizes = positions_sizes;
    for (const std::int64_t size : rest) sizes.push_back(size);
    return sizes;
  }
  /// Dimensions of front_sizes() in the order of the result.
  Shape result_order() const {
    Shape dims;
    const int in_front = positions_sizes.dim();
    for (int d = 0; d < place; ++d) dims.push_back(in_front + d);
    for (int d = 0; d < in_front; ++d) dims.push_back(d);
    for (int d = place; d < rest.dim(); ++d) dims.push_back(in_front + d);
    return dims;
  }
};

/// What the index says of neighbouring dimensions of x, which count as one: of one dimension, or of those of a mask.
struct Part {
  Tensor positions;  // undefined: all
  int dims = 1;
  bool fits = false;  // known to be within range
};

std::vector<Part> parts_of(const Tensor& x, const std::vector<Tensor>& indices, const char* op) {
  std::vector<Part> parts;
  int first = 0;  // dimension of the part
  for (const Tensor& index : indices) {
    if (!index.defined() || index.dtype() != kBool) {
      parts.push_back({index});
      ++first;
      continue;
    }
    LOCKSTEP_CHECK(index.dim() > 0, "[{}] a mask without dimensions has no place in the index; unsqueeze() the tensor",
                   op);
    for (int d = 0; d < index.dim(); ++d)
      LOCKSTEP_CHECK(first + d < x.dim() && x.sizes()[first + d] == index.sizes()[d],
                     "[{}] a mask of shape {} does not fit dimension {} of a tensor of shape {}", op,
                     to_string(index.sizes()), first + d, to_string(x.sizes()));
    parts.push_back({nonzero(index.reshape({-1})).view({-1}).to(x.device()), index.dim(), true});
    first += index.dim();
  }
  LOCKSTEP_CHECK(first <= x.dim(), "[{}] too many indices for a tensor of shape {}: {}", op, to_string(x.sizes()),
                 first);
  for (; first < x.dim(); ++first) parts.push_back({});
  return parts;
}

/// The part's positions as int64, from 0 on.
Tensor rising_positions(const Part& part, const Tensor& x, std::int64_t size, const char* op) {
  if (part.fits) return part.positions;
  const Tensor given = detail::prepare_index(part.positions, x, op);
  const Tensor at = where(given < 0, given + size, given);
  if (at.device().is_cpu()) detail::check_index_range(at.data<std::int64_t>(), at.numel(), size, op);
  return at;
}

Plan make_plan(const Tensor& x, const std::vector<Tensor>& indices, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  Plan plan;
  Shape others;
  int first = 0, groups = 0;  // groups: of indexed dimensions that lie side by side
  bool indexed_before = false;
  for (const Part& part : parts_of(x, indices, op)) {
    const bool indexed = part.positions.defined();
    if (!indexed) {
      others.push_back(first);
      plan.rest.push_back(x.sizes()[first]);
    } else {
      std::int64_t size = 1;
      for (int d = first; d < first + part.dims; ++d) {
        plan.order.push_back(d);
        size *= x.sizes()[d];
      }
      plan.add(rising_positions(part, x, size, op), size, part.fits || x.device().is_cpu(), op);
      if (!indexed_before) ++groups;
    }
    indexed_before = indexed;
    first += part.dims;
  }
  LOCKSTEP_CHECK(groups > 0, "[{}] expected a tensor among the indices", op);
  plan.place = groups == 1 ? static_cast<int>(plan.order[0]) : 0;
  plan.positions = plan.positions.reshape({-1});
  for (const std::int64_t d : others) plan.order.push_back(d);
  return plan;
}

/// rows + values added at positions.
class IndexAddBackward final : public Node {
 public:
  const char* name() const override { return "IndexAddBackward"; }
  TensorList apply(TensorList grads) override { return {grads[0], grads[0].index_select(0, saved(0))}; }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

Tensor add_rows(const Tensor& rows, const Tensor& values, const Tensor& positions) {
  NoGradGuard values_only;
  const bool floating = rows.is_floating_point();
  const Tensor sums =
      detail::index_add_rows(floating ? values : cast_values(values, kFloat64), positions, rows.sizes(), 0);
  return rows + (floating ? sums : cast_values(sums, rows.dtype()));
}

/// For each row the number of the value that it gets, -1 for none.
Tensor last_values(const Tensor& positions, std::int64_t rows) {
  const Tensor host = move_values(positions, {});
  const Tensor chosen = full({rows}, -1, {.dtype = kInt64});
  const std::int64_t* at = host.data<std::int64_t>();
  for (std::int64_t k = 0; k < host.numel(); ++k)
    if (at[k] >= 0) chosen.data<std::int64_t>()[at[k]] = k;
  return move_values(chosen, positions.device());
}

}  // namespace

Tensor index(const Tensor& x, const std::vector<Tensor>& indices) {
  const Plan plan = make_plan(x, indices, "index");
  return plan.front(x)
      .index_select(0, plan.positions)
      .view(plan.front_sizes())
      .permute(plan.result_order())
      .contiguous();
}

Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate) {
  LOCKSTEP_CHECK(values.defined(), "[index_put] the values are undefined");
  LOCKSTEP_CHECK(x.defined() && values.dtype() == x.dtype(), "[index_put] expected values of dtype {}, found {}",
                 x.defined() ? name(x.dtype()) : "of a tensor", name(values.dtype()));
  LOCKSTEP_CHECK(values.device() == x.device(),
                 "[index_put] the values are on {} and the tensor on {}; move one of them", to_string(values.device()),
                 to_string(x.device()));
  // x[x < 0] = 0: no place of the mask needs to be known.
  if (indices.size() == 1 && indices[0].defined() && indices[0].dtype() == kBool && indices[0].sizes() == x.sizes() &&
      indices[0].device() == x.device() && values.numel() == 1 && values.dim() <= 1 && !accumulate)
    return where(indices[0], values.reshape({}), x);
  const Plan plan = make_plan(x, indices, "index_put");
  const Shape sizes = plan.front_sizes(), order = plan.result_order();
  Shape result_sizes, to_front = order;
  for (int d = 0; d < order.dim(); ++d) {
    result_sizes.push_back(sizes[static_cast<int>(order[d])]);
    to_front[static_cast<int>(order[d])] = d;
  }
  LOCKSTEP_CHECK(broadcast_shapes(values.sizes(), result_sizes, "index_put") == result_sizes,
                 "[index_put] values of shape {} do not broadcast to the shape {} of what is indexed",
                 to_string(values.sizes()), to_string(result_sizes));
  Shape rows_sizes{plan.positions.numel()};
  for (const std::int64_t size : plan.rest) rows_sizes.push_back(size);
  const Tensor rows = plan.front(x), new_rows = values.expand(result_sizes).permute(to_front).reshape(rows_sizes);
  if (rows.numel() == 0 || new_rows.numel() == 0) return flat_in(x.clone(), values);
  if (accumulate) {
    const Tensor sums = add_rows(rows, new_rows, plan.positions);
    if (auto* node = record<IndexAddBackward>(sums, {&rows, &new_rows})) node->save(plan.positions);
    return plan.back(sums, x);
  }
  const Tensor chosen = last_values(plan.positions, plan.rows);
  Shape column = Shape::filled(rows.dim(), 1);
  column[0] = plan.rows;
  const Tensor written = new_rows.index_select(0, maximum(chosen, 0));
  return plan.back(where((chosen >= 0).view(column), written, rows), x);
}

Tensor Tensor::index(const std::vector<Tensor>& indices) const {
  return lockstep::index(*this, indices);
}
const Tensor& Tensor::index_put_(const std::vector<Tensor>& indices, const Tensor& values, bool accumulate) const {
  return replace_values(*this, lockstep::index_put(*this, indices, values, accumulate), "index_put_");
}

}  // namespace lockstep
