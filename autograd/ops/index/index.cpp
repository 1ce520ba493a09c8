#include "lockstep/autograd/ops/index/index.h"

#include <algorithm>
#include <numeric>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
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

/// One tensor of positions for each dimension that is indexed; undefined for the others.
std::vector<Tensor> without_masks(const Tensor& x, const std::vector<Tensor>& indices, const char* op) {
  std::vector<Tensor> positions;
  for (const Tensor& index : indices) {
    if (!index.defined() || index.dtype() != kBool) {
      positions.push_back(index);
      continue;
    }
    LOCKSTEP_CHECK(index.dim() > 0, "[{}] a mask without dimensions has no place in the index; unsqueeze() the tensor",
                   op);
    for (int d = 0; d < index.dim(); ++d) {
      const int of_x = static_cast<int>(positions.size()) + d;
      LOCKSTEP_CHECK(of_x < x.dim() && x.sizes()[of_x] == index.sizes()[d],
                     "[{}] a mask of shape {} does not fit dimension {} of a tensor of shape {}", op,
                     to_string(index.sizes()), of_x, to_string(x.sizes()));
    }
    const Tensor chosen = nonzero(index).to(x.device());
    for (int d = 0; d < index.dim(); ++d) positions.push_back(chosen.select(1, d));
  }
  return positions;
}

Plan make_plan(const Tensor& x, const std::vector<Tensor>& indices, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  const std::vector<Tensor> positions = without_masks(x, indices, op);
  LOCKSTEP_CHECK(static_cast<int>(positions.size()) <= x.dim(), "[{}] too many indices for a tensor of shape {}: {}",
                 op, to_string(x.sizes()), positions.size());
  Plan plan;
  Shape others;
  bool any = false;
  for (int d = 0; d < x.dim(); ++d) {
    const bool indexed = d < static_cast<int>(positions.size()) && positions[static_cast<std::size_t>(d)].defined();
    (indexed ? plan.order : others).push_back(d);
    if (!indexed) {
      plan.rest.push_back(x.sizes()[d]);
      continue;
    }
    const Tensor& index = positions[static_cast<std::size_t>(d)];
    plan.positions_sizes = broadcast_shapes(plan.positions_sizes, index.sizes(), op);
    plan.rows *= x.sizes()[d];
    any = true;
  }
  LOCKSTEP_CHECK(any, "[{}] expected a tensor among the indices", op);
  const auto first = static_cast<int>(plan.order[0]);
  const bool side_by_side = plan.order.back() - first + 1 == plan.order.dim();
  plan.place = side_by_side ? first : 0;

  Tensor linear = zeros(plan.positions_sizes, {.dtype = kInt64, .device = x.device()});
  Tensor fits = ones(plan.positions_sizes, {.dtype = kBool, .device = x.device()});
  for (const std::int64_t d : plan.order) {
    const std::int64_t size = x.sizes()[static_cast<int>(d)];
    const Tensor given = detail::prepare_index(positions[static_cast<std::size_t>(d)], x, op);
    const Tensor at = where(given < 0, given + size, given);
    if (at.device().is_cpu()) detail::check_index_range(at.data<std::int64_t>(), at.numel(), size, op);
    fits = fits * (at >= 0) * (at < size);
    linear = linear * size + at;
  }
  plan.positions = where(fits, linear, -1).reshape({-1});
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
  if (rows.numel() == 0 || new_rows.numel() == 0) return x.clone();
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
  return copy_(lockstep::index_put(*this, indices, values, accumulate));
}

}  // namespace lockstep
