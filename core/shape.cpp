#include "lockstep/core/shape.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep {

void Shape::throw_too_many(std::size_t count) {
  detail::throw_error(fmt::format("a shape has at most {} dimensions; got {}", kMaxDims, count));
}

Shape Shape::filled(int count, std::int64_t value) {
  if (count > kMaxDims) throw_too_many(static_cast<std::size_t>(count));
  Shape shape;
  shape.count_ = count;
  std::fill(shape.begin(), shape.end(), value);
  return shape;
}

void Shape::push_back(std::int64_t value) {
  insert(count_, value);
}

void Shape::insert(int i, std::int64_t value) {
  if (count_ == kMaxDims) throw_too_many(kMaxDims + 1);
  ++count_;
  std::copy_backward(begin() + i, end() - 1, end());
  (*this)[i] = value;
}

void Shape::erase(int i) {
  std::copy(begin() + i + 1, end(), begin() + i);
  --count_;
  values_[static_cast<std::size_t>(count_)] = 0;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.dim(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

bool strides_may_overlap(const Shape& sizes, const Shape& strides) {
  if (sizes.numel() <= 1) return false;
  Shape order;
  for (int d = 0; d < sizes.dim(); ++d)
    if (sizes[d] > 1) order.push_back(d);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return strides[static_cast<int>(a)] < strides[static_cast<int>(b)];
  });
  std::int64_t reached = 0;  // the last place that the dimensions so far lead to
  for (const std::int64_t d : order) {
    const std::int64_t stride = strides[static_cast<int>(d)];
    if (stride <= reached) return true;
    reached += stride * (sizes[static_cast<int>(d)] - 1);
  }
  return false;
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides = Shape::filled(sizes.dim(), 1);
  for (int i = sizes.dim() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<std::int64_t>(sizes[i + 1], 1);
  return strides;
}

int wrap_dim(std::int64_t dim, int dims, const char* op) {
  LOCKSTEP_CHECK(dims <= Shape::kMaxDims, "[{}] the result would have {} dimensions; expected at most {}", op, dims,
                 Shape::kMaxDims);
  const int range = std::max(dims, 1);
  LOCKSTEP_CHECK(dim >= -range && dim < range, "[{}] dimension {} is out of range; expected {} to {} for {} dimensions",
                 op, dim, -range, range - 1, dims);
  return static_cast<int>(dim < 0 ? dim + range : dim);
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  if (a == b) return a;
  Shape out = Shape::filled(std::max(a.dim(), b.dim()), 1);
  for (int i = 1; i <= out.dim(); ++i) {
    const std::int64_t x = i <= a.dim() ? a[a.dim() - i] : 1;
    const std::int64_t y = i <= b.dim() ? b[b.dim() - i] : 1;
    LOCKSTEP_CHECK(x == y || x == 1 || y == 1,
                   "[{}] shapes {} and {} do not broadcast: sizes {} and {} at dimension -{}", op, to_string(a),
                   to_string(b), x, y, i);
    out[out.dim() - i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace lockstep
