// Elements and slices that are written, or combined, where an index says.

#include <limits>
#include <string>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

using detail::ScatterReduce;

constexpr KernelTable<detail::ScatterReduceKernel> reduce_kernel{"scatter_reduce", detail::scatter_reduce_cpu};

/// What does not change another value that it is combined with.
Scalar neutral(ScatterReduce reduce, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (reduce == ScatterReduce::product) return 1;
  const bool largest = reduce == ScatterReduce::minimum;
  if (is_floating_point(dtype)) return largest ? kInfinity : -kInfinity;
  return largest ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::lowest();
}

/// A dtype that the kernels compute in.
DType wide(DType dtype) {
  if (!is_floating_point(dtype)) return kInt64;
  return dtype == kFloat64 ? kFloat64 : kFloat32;
}

/// What is kept for backward: x, the part of the source, the result and the positions.
struct ReduceBackward : Node {
  int dim = 0;
  bool include_self = true;

  /// For each place how many elements of the source go there.
  Tensor counts(const Tensor& like) const {
    return scatter_add(zeros(like.sizes(), options_of(like)), dim, saved(3), ones(saved(3).sizes(), options_of(like)));
  }
  /// `grad`, 0 where x did not count.
  Tensor for_self(const Tensor& grad) const { return include_self ? grad : scatter(grad, dim, saved(3), 0.0); }
};

/// Equal extremes share the gradient.
struct ExtremeBackward final : ReduceBackward {
  const char* name() const override { return "ScatterExtremeBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &source = saved(1), &out = saved(2), &positions = saved(3);
    const Tensor self = for_self(eq(x, out).to(grads[0].dtype()));
    const Tensor chosen = eq(source, out.gather(dim, positions)).to(grads[0].dtype());
    const Tensor winners = scatter_add(self, dim, positions, chosen);
    const Tensor share = grads[0] / winners;
    TensorList result(2);
    if (needs_grad(0)) result[0] = include_self ? self * share : where(unnamed(x), grads[0], 0.0);
    if (needs_grad(1)) result[1] = chosen * share.gather(dim, positions);
    return result;
  }
  // Linear in the gradient: which elements are extremes has no slope.
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }

 private:
  /// Places that no element of the source goes to.
  Tensor unnamed(const Tensor& x) const { return eq(counts(x.detach()), 0.0); }
};

/// Of a product the others are what an element is multiplied with, zeros included.
struct ProductBackward final : ReduceBackward {
  const char* name() const override { return "ScatterProductBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &source = saved(1), &positions = saved(3);
    const Tensor self = include_self ? x : scatter(x, dim, positions, 1.0);
    const Tensor zero_self = eq(self, 0.0), zero_source = eq(source, 0.0);
    const Tensor zeros = scatter_add(zero_self.to(x.dtype()), dim, positions, zero_source.to(x.dtype()));
    const Tensor rest = scatter_reduce(where(zero_self, 1.0, self), dim, positions, where(zero_source, 1.0, source),
                                       "prod");  // of what is not 0
    const Tensor slope = grads[0] * rest;
    const auto of_element = [](const Tensor& slopes, const Tensor& value, const Tensor& is_zero, const Tensor& count) {
      return where(is_zero, where(eq(count, 1.0), slopes, 0.0),
                   where(eq(count, 0.0), slopes / where(is_zero, 1.0, value), 0.0));
    };
    TensorList result(2);
    if (needs_grad(0)) result[0] = for_self(of_element(slope, self, zero_self, zeros));
    if (needs_grad(1))
      result[1] = of_element(slope.gather(dim, positions), source, zero_source, zeros.gather(dim, positions));
    return result;
  }
};

/// With the kernel: x and source combined, in x's dtype.
template <typename Backward>
Tensor combined(const Tensor& x, int d, const Tensor& positions, const Tensor& part, ScatterReduce reduce,
                bool include_self) {
  Tensor out;
  {
    const NoGradGuard values_only;
    const DType dtype = wide(x.dtype());
    out = copy_contiguous(cast_values(x.detach(), dtype));
    if (positions.numel() > 0) {
      if (!include_self) {
        const Tensor places = zeros(x.sizes(), {.dtype = kBool, .device = x.device()});
        const Tensor named = scatter(places, d, positions, true);
        const Tensor start = empty_like(out);
        fill_values(start, neutral(reduce, dtype));
        out = copy_contiguous(where(named, start, out));
      }
      reduce_kernel(out)(reduce, as_contiguous(cast_values(part.detach(), dtype)), d, positions, out);
    }
    out = cast_values(out, x.dtype());
  }
  if (auto* node = record<Backward>(out, {&x, &part})) {
    node->save(x, part, out, positions);
    node->dim = d;
    node->include_self = include_self;
  }
  return out;
}

Tensor mean_at(const Tensor& x, int d, const Tensor& positions, const Tensor& part, bool include_self) {
  const Tensor start = include_self ? x : scatter(x, d, positions, 0);
  Tensor count;
  {
    const NoGradGuard values_only;
    const DType dtype = x.is_floating_point() ? wide(x.dtype()) : kInt64;
    const TensorOptions options{.dtype = dtype, .device = x.device()};
    const Tensor each = ones(positions.sizes(), options);
    const Tensor before = ones(x.sizes(), options);
    count = scatter_add(include_self ? before : scatter(before, d, positions, 0), d, positions, each);
  }
  const Tensor sums = scatter_add(start, d, positions, part);
  return x.is_floating_point() ? sums / count.to(x.dtype()) : div(sums, count.to(x.dtype()), RoundingMode::floor);
}

/// An index [n] spread over the slices of `source`.
Tensor spread(const Tensor& x, int d, const Tensor& index, const Tensor& source, const char* op) {
  LOCKSTEP_CHECK(index.defined() && index.dim() <= 1, "[{}] expected an index with at most one dimension, found {}", op,
                 index.defined() ? to_string(index.sizes()) : "an undefined tensor");
  Shape expected = x.sizes();
  expected[d] = index.numel();
  LOCKSTEP_CHECK(source.defined() && source.sizes() == expected, "[{}] expected a source of shape {}, found {}", op,
                 to_string(expected), source.defined() ? to_string(source.sizes()) : "an undefined tensor");
  Shape column = Shape::filled(x.dim(), 1);
  column[d] = index.numel();
  return index.reshape(column).expand(expected);
}

}  // namespace

Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                      std::string_view reduce, bool include_self) {
  LOCKSTEP_CHECK(x.defined() && index.defined() && source.defined(), "[scatter_reduce] a tensor is undefined");
  if (x.dim() == 0)
    return scatter_reduce(x.view({1}), dim, index.view({-1}), source.view({-1}), reduce, include_self).view({});
  const int d = wrap_dim(dim, x.dim(), "scatter_reduce");
  const Tensor positions = detail::scatter_index(x, d, index, source, "scatter_reduce");
  const Tensor part = detail::scattered_part(source, positions.sizes());
  if (positions.numel() == 0) return flat_in(x.clone(), source);
  if (is_elsewhere(x) && reduce != "sum" && reduce != "mean")
    return scatter_reduce(x.to(kCPU), d, index.to(kCPU), source.to(kCPU), reduce, include_self).to(x.device());
  if (reduce == "sum") return scatter_add(include_self ? x : scatter(x, d, positions, 0), d, positions, part);
  if (reduce == "mean") return mean_at(x, d, positions, part, include_self);
  if (reduce == "prod") return combined<ProductBackward>(x, d, positions, part, ScatterReduce::product, include_self);
  const bool largest = reduce == "amax";
  LOCKSTEP_CHECK(largest || reduce == "amin",
                 "[scatter_reduce] expected \"sum\", \"prod\", \"mean\", \"amax\" or \"amin\", found \"{}\"",
                 std::string(reduce));
  return combined<ExtremeBackward>(x, d, positions, part, largest ? ScatterReduce::maximum : ScatterReduce::minimum,
                                   include_self);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce) {
  LOCKSTEP_CHECK(reduce == "add" || reduce == "multiply", "[scatter] expected \"add\" or \"multiply\", found \"{}\"",
                 std::string(reduce));
  return scatter_reduce(x, dim, index, source, reduce == "add" ? "sum" : "prod");
}

Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                    std::string_view reduce, bool include_self) {
  LOCKSTEP_CHECK(x.defined(), "[index_reduce] the tensor is undefined");
  if (x.dim() == 0) return index_reduce(x.view({1}), dim, index, source.reshape({-1}), reduce, include_self).view({});
  const int d = wrap_dim(dim, x.dim(), "index_reduce");
  return scatter_reduce(x, d, spread(x, d, index, source, "index_reduce"), source, reduce, include_self);
}

Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  LOCKSTEP_CHECK(x.defined(), "[index_copy] the tensor is undefined");
  if (x.dim() == 0) return index_copy(x.view({1}), dim, index, source.reshape({-1})).view({});
  const int d = wrap_dim(dim, x.dim(), "index_copy");
  return scatter(x, d, spread(x, d, index, source, "index_copy"), source);
}

Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& value) {
  LOCKSTEP_CHECK(x.defined() && index.defined() && value.defined(), "[index_fill] a tensor is undefined");
  LOCKSTEP_CHECK(value.dim() == 0, "[index_fill] expected a value without dimensions, found {}",
                 to_string(value.sizes()));
  if (x.dim() == 0) return index_fill(x.view({1}), dim, index, value).view({});
  const int d = wrap_dim(dim, x.dim(), "index_fill");
  Tensor positions = detail::prepare_index(index, x, "index_fill").reshape({-1});
  positions = where(positions < 0, positions + x.size(d), positions);
  Tensor named = zeros({x.size(d)}, {.dtype = kBool, .device = x.device()});
  named = scatter(named, 0, positions, true);
  Shape column = Shape::filled(x.dim(), 1);
  column[d] = x.size(d);
  return where(named.view(column), value.to(x.dtype()), x);
}

Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value) {
  LOCKSTEP_CHECK(x.defined(), "[index_fill] the tensor is undefined");
  return index_fill(x, dim, index, scalar_tensor(value, options_of(x)));
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined() && index.defined() && x.dim() == index.dim(),
                 "[take_along_dim] expected a tensor and an index of as many dimensions, found {} and {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor",
                 index.defined() ? to_string(index.sizes()) : "an undefined tensor");
  const int d = wrap_dim(dim, x.dim(), "take_along_dim");
  Shape x_sizes = x.sizes(), index_sizes = index.sizes();
  x_sizes[d] = index_sizes[d] = 1;
  const Shape common = broadcast_shapes(x_sizes, index_sizes, "take_along_dim");
  x_sizes = index_sizes = common;
  x_sizes[d] = x.size(d);
  index_sizes[d] = index.size(d);
  const Tensor positions = where(index < 0, index + x.size(d), index);
  return x.expand(x_sizes).gather(d, positions.expand(index_sizes));
}

Tensor take_along_dim(const Tensor& x, const Tensor& index) {
  LOCKSTEP_CHECK(x.defined() && index.defined(), "[take_along_dim] a tensor is undefined");
  return take_along_dim(x.reshape({-1}), index.reshape({-1}), 0);
}

Tensor take(const Tensor& x, const Tensor& index) {
  LOCKSTEP_CHECK(x.defined() && index.defined(), "[take] a tensor is undefined");
  return take_along_dim(x, index).view(index.sizes());
}

}  // namespace lockstep
