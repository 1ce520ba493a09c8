#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

Tensor detail::scatter_index(const Tensor& x, int d, const Tensor& index, const Tensor& source, const char* op) {
  const Tensor positions = prepare_positions(index, x, d, op);
  LOCKSTEP_CHECK(source.defined(), "[{}] the source is undefined", op);
  LOCKSTEP_CHECK(source.dtype() == x.dtype() && source.device() == x.device(),
                 "[{}] expected a source of dtype {} on {}, as the tensor, found {} on {}", op, name(x.dtype()),
                 to_string(x.device()), name(source.dtype()), to_string(source.device()));
  LOCKSTEP_CHECK(positions.dim() == x.dim() && source.dim() == x.dim(),
                 "[{}] expected tensor, index and source of as many dimensions, found shapes {}, {} and {}", op,
                 to_string(x.sizes()), to_string(positions.sizes()), to_string(source.sizes()));
  for (int i = 0; i < x.dim(); ++i)
    LOCKSTEP_CHECK(positions.sizes()[i] <= source.sizes()[i] && (i == d || positions.sizes()[i] <= x.sizes()[i]),
                   "[{}] index shape {} is larger than the source's shape {} or, but in dimension {}, the tensor's {}",
                   op, to_string(positions.sizes()), to_string(source.sizes()), d, to_string(x.sizes()));
  return positions;
}

Tensor detail::scattered_part(const Tensor& source, const Shape& sizes) {
  Tensor part = source;
  for (int d = 0; d < sizes.dim(); ++d)
    if (part.sizes()[d] != sizes[d]) part = part.narrow(d, 0, sizes[d]);
  return part;
}

namespace {

constexpr KernelTable<detail::GatherBackwardKernel> add_kernel{"scatter_add", detail::gather_backward_cpu,
                                                               LOCKSTEP_CUDA_KERNEL(detail::gather_backward_cuda)};
constexpr KernelTable<detail::ScatterKernel> scatter_kernel{"scatter", detail::scatter_cpu};

/// Sums in a dtype that holds them: float32 for half types, int64 for integers and bool, whose sums are true unless 0.
DType sum_dtype(DType dtype) {
  if (!is_floating_point(dtype)) return kInt64;
  return element_size(dtype) == 2 ? kFloat32 : dtype;
}

class ScatterAddBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "ScatterAddBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result{grads[0], Tensor()};
    if (needs_grad(1)) result[1] = grads[0].gather(dim, saved(0));
    return result;
  }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

/// Adds `terms` to `sums` at the places of `positions`: row by row where it speaks of slices.
void add_at(const Tensor& terms, int dim, const Tensor& positions, const Tensor& sums) {
  const Tensor slices = detail::index_of_slices(positions, dim, sums.sizes());
  if (!slices.defined()) return add_kernel(sums)(terms, dim, positions, sums);
  const Shape around = detail::around_dim(sums.sizes(), dim);
  detail::index_add_values(terms.view({around[0], slices.numel(), around[2]}), as_contiguous(slices),
                           sums.view(around));
}

/// x with the values of `source` at the places of `positions`, for tensors on the CPU.
Tensor scattered(const Tensor& x, int dim, const Tensor& positions, const Tensor& source) {
  const Tensor out = copy_contiguous(x);
  scatter_kernel(out)(as_contiguous(source), dim, positions, out);
  return out;
}

/// x's gradient does not come from the places that were written, the source's from those where it was written last.
class ScatterBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "ScatterBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& positions = saved(0);
    TensorList result(2);
    if (needs_grad(0)) result[0] = scattered(grads[0], dim, positions, zeros(positions.sizes(), options_of(grads[0])));
    if (needs_grad(1)) result[1] = of_source(grads[0]);
    return result;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList result(2);
    if (needs_grad(0)) result[0] = scatter(grads[0], dim, saved(0), 0.0);
    if (needs_grad(1)) result[1] = of_source(grads[0]);
    return result;
  }

 private:
  Tensor of_source(const Tensor& grad) const {
    const Tensor& positions = saved(0);
    const TensorOptions whole{.dtype = kInt64, .device = grad.device()};
    const Tensor numbers = arange(positions.numel(), whole).view(positions.sizes());
    const Tensor last = scattered(zeros(grad.sizes(), whole), dim, positions, numbers);
    return where(eq(last.gather(dim, positions), numbers), grad.gather(dim, positions), 0);
  }
};

class IndexAddBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "IndexAddBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result{grads[0], Tensor()};
    if (needs_grad(1)) result[1] = grads[0].index_select(dim, saved(0));
    return result;
  }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

}  // namespace

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  LOCKSTEP_CHECK(x.defined(), "[scatter_add] the tensor is undefined");
  if (x.dim() == 0) return scatter_add(x.view({1}), dim, index.view({-1}), source.view({-1})).view({});
  const int d = wrap_dim(dim, x.dim(), "scatter_add");
  const Tensor positions = detail::scatter_index(x, d, index, source, "scatter_add");
  const Tensor part = detail::scattered_part(source, positions.sizes());
  Tensor out;
  {
    const NoGradGuard values_only;
    const DType dtype = sum_dtype(x.dtype());
    out = copy_contiguous(cast_values(x, dtype));
    const Tensor terms = as_contiguous(cast_values(part, dtype));
    if (terms.numel() > 0 && out.device().is_cpu()) {
      add_at(terms, d, positions, out);
    } else if (terms.numel() > 0) {
      const Tensor sums = zeros(x.sizes(), options_of(out));
      add_at(terms, d, positions, sums);
      out = out + sums;
    }
    out = cast_values(out, x.dtype());
  }
  if (auto* node = record<ScatterAddBackward>(out, {&x, &part})) {
    node->save(positions);
    node->dim = d;
  }
  return out;
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  LOCKSTEP_CHECK(x.defined(), "[scatter] the tensor is undefined");
  if (x.dim() == 0) return scatter(x.view({1}), dim, index.view({-1}), source.view({-1})).view({});
  const int d = wrap_dim(dim, x.dim(), "scatter");
  const Tensor positions = detail::scatter_index(x, d, index, source, "scatter");
  if (positions.numel() == 0) return flat_in(x.clone(), source);
  if (x.device().is_cpu()) {
    const Tensor part = detail::scattered_part(source, positions.sizes());
    Tensor out;
    {
      const NoGradGuard values_only;
      out = scattered(x.detach(), d, positions, part);
    }
    if (auto* node = record<ScatterBackward>(out, {&x, &part})) {
      node->save(positions);
      node->dim = d;
    }
    return out;
  }
  // The number in x of each place.
  const Shape strides = contiguous_strides(x.sizes());
  const std::int64_t size = x.sizes()[d];
  Tensor places = where((positions >= 0) * (positions < size), positions * strides[d], -x.numel());
  for (int i = 0; i < x.dim(); ++i) {
    if (i == d) continue;
    Shape column = Shape::filled(x.dim(), 1);
    column[i] = positions.sizes()[i];
    places = places + (arange(column[i], {.dtype = kInt64, .device = x.device()}) * strides[i]).view(column);
  }
  places = where(places < 0, x.numel(), places);  // out of range: left out
  const Tensor values = detail::scattered_part(source, positions.sizes()).reshape({-1});
  return index_put(x.reshape({-1}), {places.reshape({-1})}, values).view(x.sizes());
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value) {
  LOCKSTEP_CHECK(x.defined() && index.defined(), "[scatter] the tensor or the index is undefined");
  return scatter(x, dim, index, full(index.sizes(), value, options_of(x)));
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  LOCKSTEP_CHECK(x.defined() && source.defined(), "[index_add] a tensor is undefined");
  if (x.dim() == 0) return index_add(x.view({1}), dim, index, source.reshape({-1})).view({});
  const int d = wrap_dim(dim, x.dim(), "index_add");
  const Tensor positions = detail::prepare_index(index, x, "index_add");
  Shape expected = x.sizes();
  expected[d] = positions.numel();
  LOCKSTEP_CHECK(positions.dim() <= 1 && source.sizes() == expected,
                 "[index_add] expected an index [n] and a source of shape {}, found {} and {}", to_string(expected),
                 to_string(positions.sizes()), to_string(source.sizes()));
  LOCKSTEP_CHECK(source.dtype() == x.dtype() && source.device() == x.device(),
                 "[index_add] expected two tensors of one dtype on one device, found {} and {}", name(x.dtype()),
                 name(source.dtype()));
  if (x.device().is_cpu())
    detail::check_index_range(positions.data<std::int64_t>(), positions.numel(), x.sizes()[d], "index_add");
  Tensor out;
  {
    const NoGradGuard values_only;
    const DType dtype = sum_dtype(x.dtype());
    const Tensor sums = detail::index_add_rows(cast_values(source, dtype), positions, x.sizes(), d);
    out = cast_values(cast_values(x, dtype) + sums, x.dtype());
  }
  if (auto* node = record<IndexAddBackward>(out, {&x, &source})) {
    node->save(positions);
    node->dim = d;
  }
  return out;
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source, double alpha) {
  LOCKSTEP_CHECK(x.defined() && source.defined(), "[index_add] a tensor is undefined");
  LOCKSTEP_CHECK(x.is_floating_point() || Scalar(alpha).is_whole(),
                 "[index_add] expected a whole alpha for {} tensors, found {}", name(x.dtype()), alpha);
  return index_add(x, dim, index, alpha == 1.0 ? source : (source * alpha).to(source.dtype()));
}

namespace {

/// Of int64 on the CPU, contiguous: the least and the largest of some numbers.
std::pair<std::int64_t, std::int64_t> range_of(const Tensor& numbers) {
  const std::int64_t* const values = numbers.data<std::int64_t>();
  std::int64_t least = values[0], most = values[0];
  for (std::int64_t i = 1; i < numbers.numel(); ++i) {
    least = std::min(least, values[i]);
    most = std::max(most, values[i]);
  }
  return {least, most};
}
/// How often each of [0, length) is among the numbers. Neighbours are counted apart from each other where tables are
/// small, since to count two equal ones in turn takes as long as to write and read back the first count.
Tensor counts_of(const Tensor& numbers, std::int64_t length) {
  constexpr std::int64_t kTables = 4, kSmall = 4096;
  const Tensor counts = zeros({length}, options_of(numbers));
  const std::int64_t* const values = numbers.data<std::int64_t>();
  std::int64_t* const first = counts.data<std::int64_t>();
  std::int64_t i = 0;
  if (length <= kSmall) {
    std::vector<std::int64_t> others(static_cast<std::size_t>((kTables - 1) * length));
    std::int64_t* const tables[kTables] = {first, others.data(), others.data() + length, others.data() + 2 * length};
    for (; i + kTables <= numbers.numel(); i += kTables)
      for (std::int64_t t = 0; t < kTables; ++t) ++tables[t][values[i + t]];
    for (std::int64_t t = 1; t < kTables; ++t)
      for (std::int64_t n = 0; n < length; ++n) first[n] += tables[t][n];
  }
  for (; i < numbers.numel(); ++i) ++first[values[i]];
  return counts;
}

}  // namespace

Tensor bincount(const Tensor& x, const Tensor& weights, std::int64_t minlength) {
  LOCKSTEP_CHECK(x.defined() && x.dim() == 1 && !x.is_floating_point() && x.dtype() != kBool,
                 "[bincount] expected integers in one dimension, found {}",
                 x.defined() ? std::string(name(x.dtype())) + " " + to_string(x.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(minlength >= 0, "[bincount] expected a minlength of at least 0, found {}", minlength);
  if (x.numel() == 0 && (!weights.defined() || weights.numel() == 0))  // whatever the weights' dtype, as in PyTorch
    return zeros({minlength}, {.dtype = kInt64, .device = x.device()});
  const auto length_for = [minlength](std::int64_t least, std::int64_t most) {
    LOCKSTEP_CHECK(least >= 0, "[bincount] expected numbers of at least 0, found {}", least);
    LOCKSTEP_CHECK(most < std::numeric_limits<std::int64_t>::max(), "[bincount] expected smaller numbers, found {}",
                   most);
    return std::max(minlength, most + 1);
  };
  if (x.device().is_cpu() && !weights.defined()) {
    const Tensor numbers = as_contiguous(cast_values(x, kInt64));
    const auto [least, most] = range_of(numbers);
    return counts_of(numbers, length_for(least, most));
  }
  const Tensor counted = !weights.defined()            ? ones(x.sizes(), {.dtype = kInt64, .device = x.device()})
                         : weights.dtype() == kFloat32 ? weights
                                                       : weights.to(kFloat64);
  std::int64_t length = minlength;
  if (x.numel() > 0) length = length_for(min(x).item<std::int64_t>(), max(x).item<std::int64_t>());
  return index_add(zeros({length}, options_of(counted)), 0, x.to(kInt64), counted);
}

}  // namespace lockstep
