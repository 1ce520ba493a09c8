// Grids, diagonals, windows and repetitions, made of views, index_select() and scatter().

#include <algorithm>
#include <cstdlib>
#include <string>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

Tensor numbers(const std::vector<std::int64_t>& values, Device device) {
  return move_values(tensor(values), device);
}

/// The number of each slice as often as `times` says.
Tensor repeated_numbers(const Tensor& times, std::int64_t slices, Device device) {
  LOCKSTEP_CHECK(times.defined() && times.dim() <= 1 && (times.dtype() == kInt64 || times.dtype() == kInt32),
                 "[repeat_interleave] expected numbers of repetitions, int64 or int32, in at most one dimension");
  const Tensor host = as_contiguous(cast_values(move_values(times, {}), kInt64));
  LOCKSTEP_CHECK(host.numel() == slices || host.numel() == 1,
                 "[repeat_interleave] expected {} numbers of repetitions, or one, found {}", slices, host.numel());
  std::vector<std::int64_t> at;
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::int64_t n = host.data<std::int64_t>()[host.numel() == 1 ? 0 : i];
    LOCKSTEP_CHECK(n >= 0, "[repeat_interleave] expected numbers of at least 0, found {}", n);
    at.insert(at.end(), static_cast<std::size_t>(n), i);
  }
  return numbers(at, device);
}

Tensor triangle_indices(std::int64_t rows, std::int64_t columns, std::int64_t diagonal, bool lower, const char* op) {
  LOCKSTEP_CHECK(rows >= 0 && columns >= 0, "[{}] expected sizes of at least 0, found {} and {}", op, rows, columns);
  diagonal = std::clamp(diagonal, -rows, columns);  // those beyond are like these
  std::vector<std::int64_t> at_row, at_column;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t first = lower ? 0 : std::clamp<std::int64_t>(r + diagonal, 0, columns);
    const std::int64_t end = lower ? std::clamp<std::int64_t>(r + diagonal + 1, 0, columns) : columns;
    for (std::int64_t c = first; c < end; ++c) {
      at_row.push_back(r);
      at_column.push_back(c);
    }
  }
  return stack({tensor(at_row), tensor(at_column)});
}

}  // namespace

Tensor repeat_interleave(const Tensor& x, const Tensor& times, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0, "[repeat_interleave] expected a tensor with dimensions");
  const int d = wrap_dim(dim, x.dim(), "repeat_interleave");
  return x.index_select(d, repeated_numbers(times, x.size(d), x.device()));
}
Tensor repeat_interleave(const Tensor& x, const Tensor& times) {
  LOCKSTEP_CHECK(x.defined(), "[repeat_interleave] the tensor is undefined");
  return repeat_interleave(x.reshape({-1}), times, 0);
}
Tensor repeat_interleave(const Tensor& x, std::int64_t times) {
  LOCKSTEP_CHECK(x.defined(), "[repeat_interleave] the tensor is undefined");
  return repeat_interleave(x.reshape({-1}), times, 0);
}
Tensor repeat_interleave(const Tensor& times) {
  LOCKSTEP_CHECK(times.defined() && times.dim() == 1, "[repeat_interleave] expected numbers in one dimension");
  return repeated_numbers(times, times.numel(), times.device());
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes, std::string_view indexing) {
  LOCKSTEP_CHECK(indexing == "ij" || indexing == "xy", "[meshgrid] expected indexing \"ij\" or \"xy\", found \"{}\"",
                 std::string(indexing));
  if (indexing == "ij" || axes.size() < 2) return meshgrid(axes);
  std::vector<Tensor> turned = axes;
  std::swap(turned[0], turned[1]);
  std::vector<Tensor> grids = meshgrid(turned);
  std::swap(grids[0], grids[1]);
  return grids;
}

Tensor cartesian_prod(const std::vector<Tensor>& tensors) {
  LOCKSTEP_CHECK(!tensors.empty(), "[cartesian_prod] expected at least one tensor");
  if (tensors.size() == 1) return tensors[0];
  std::vector<Tensor> columns;
  for (const Tensor& grid : meshgrid(tensors)) columns.push_back(grid.reshape({-1}));
  return stack(columns, 1);
}

Tensor rot90(const Tensor& x, std::int64_t k, const Shape& dims) {
  LOCKSTEP_CHECK(x.defined() && dims.dim() == 2 && x.dim() >= 2, "[rot90] expected a tensor and two of its dimensions");
  const int from = wrap_dim(dims[0], x.dim(), "rot90"), to = wrap_dim(dims[1], x.dim(), "rot90");
  LOCKSTEP_CHECK(from != to, "[rot90] expected two different dimensions, found {}", to_string(dims));
  switch ((k % 4 + 4) % 4) {
    case 1:
      return flip(x, {to}).transpose(from, to);
    case 2:
      return flip(x, {from, to});
    case 3:
      return flip(x, {from}).transpose(from, to);
    default:
      return clone(x);
  }
}

Tensor fliplr(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 2, "[fliplr] expected at least two dimensions");
  return flip(x, {1});
}
Tensor flipud(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 1, "[flipud] expected at least one dimension");
  return flip(x, {0});
}

Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t diagonal) {
  return triangle_indices(rows, columns, diagonal, true, "tril_indices");
}
Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t diagonal) {
  return triangle_indices(rows, columns, diagonal, false, "triu_indices");
}

Tensor windows(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step) {
  LOCKSTEP_CHECK(x.defined(), "[unfold] the tensor is undefined");
  const int d = wrap_dim(dim, x.dim(), "unfold");
  if (x.dim() == 0) return windows(x.view({1}), 0, size, step).squeeze(0);
  LOCKSTEP_CHECK(step > 0 && size >= 0 && size <= x.size(d),
                 "[unfold] expected windows of 0 to {} elements and a step of at least 1, found {} and {}", x.size(d),
                 size, step);
  const std::int64_t count = (x.size(d) - size) / step + 1;
  std::vector<std::int64_t> at;
  for (std::int64_t w = 0; w < count; ++w)
    for (std::int64_t i = 0; i < size; ++i) at.push_back(w * step + i);
  return unflatten(x.index_select(d, numbers(at, x.device())), d, {count, size}).movedim(d + 1, -1);
}

Tensor diag_embed(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 1, "[diag_embed] expected a tensor with dimensions");
  const int d1 = wrap_dim(dim1, x.dim() + 1, "diag_embed"), d2 = wrap_dim(dim2, x.dim() + 1, "diag_embed");
  LOCKSTEP_CHECK(d1 != d2, "[diag_embed] expected two different dimensions, found {} and {}", dim1, dim2);
  constexpr std::int64_t kFar = std::int64_t{1} << 31;
  LOCKSTEP_CHECK(offset > -kFar && offset < kFar, "[diag_embed] offset is {}; expected one between -2^31 and 2^31",
                 offset);
  const std::int64_t n = x.size(-1), size = n + std::abs(offset);
  const std::int64_t first = offset >= 0 ? offset : -offset * size;  // element [0, offset] or [-offset, 0]
  Shape sizes = x.sizes();
  sizes[x.dim() - 1] = size * size;
  const Tensor flat = zeros(sizes, options_of(x));
  const std::int64_t end = n > 0 ? first + (n - 1) * (size + 1) + 1 : first;
  flat.slice(-1, first, end, size + 1).copy_(x);
  const Tensor square = unflatten(flat, -1, {size, size});
  return movedim(square, Shape{-2, -1}, Shape{d1, d2});
}

Tensor block_diag(const std::vector<Tensor>& blocks) {
  LOCKSTEP_CHECK(!blocks.empty(), "[block_diag] expected at least one tensor");
  std::int64_t columns = 0, before = 0;
  DType dtype = blocks[0].dtype();
  for (const Tensor& block : blocks) {
    LOCKSTEP_CHECK(block.defined() && block.dim() <= 2, "[block_diag] expected tensors of at most two dimensions");
    columns += block.dim() == 0 ? 1 : block.size(-1);
    dtype = promote_types(dtype, block.dtype());
  }
  std::vector<Tensor> rows;
  for (const Tensor& block : blocks) {
    const Tensor matrix = (block.dim() == 2 ? block : block.reshape({1, -1})).to(dtype);
    rows.push_back(pad(matrix, {before, columns - before - matrix.size(1)}));
    before += matrix.size(1);
  }
  return cat(rows, 0);
}

Tensor hstack(const std::vector<Tensor>& tensors) {
  LOCKSTEP_CHECK(!tensors.empty(), "[hstack] expected at least one tensor");
  std::vector<Tensor> all;
  for (const Tensor& x : tensors) all.push_back(x.dim() == 0 ? x.reshape({1}) : x);
  return cat(all, all[0].dim() == 1 ? 0 : 1);
}

Tensor vstack(const std::vector<Tensor>& tensors) {
  LOCKSTEP_CHECK(!tensors.empty(), "[vstack] expected at least one tensor");
  std::vector<Tensor> all;
  for (const Tensor& x : tensors) all.push_back(x.dim() < 2 ? x.reshape({1, x.numel()}) : x);
  return cat(all, 0);
}

Tensor dstack(const std::vector<Tensor>& tensors) {
  LOCKSTEP_CHECK(!tensors.empty(), "[dstack] expected at least one tensor");
  std::vector<Tensor> all;
  for (const Tensor& x : tensors)
    all.push_back(x.dim() < 2 ? x.reshape({1, x.numel(), 1}) : (x.dim() == 2 ? x.unsqueeze(2) : x));
  return cat(all, 2);
}

Tensor column_stack(const std::vector<Tensor>& tensors) {
  LOCKSTEP_CHECK(!tensors.empty(), "[column_stack] expected at least one tensor");
  std::vector<Tensor> all;
  for (const Tensor& x : tensors) all.push_back(x.dim() < 2 ? x.reshape({x.numel(), 1}) : x);
  return cat(all, 1);
}

}  // namespace lockstep
