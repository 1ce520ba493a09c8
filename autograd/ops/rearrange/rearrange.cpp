#include "lockstep/autograd/ops/rearrange/rearrange.h"

#include <algorithm>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/autograd/ops/rearrange/apart.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/storage.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

Tensor with_leading(const Tensor& x, int dims) {
  Tensor out = x;
  while (out.dim() < dims) out = out.unsqueeze(0);
  return out;
}

void write_one_hot(const std::int64_t* index, std::int64_t count, std::int64_t classes, std::int64_t* rows) {
  parallel_for(count, std::max<std::int64_t>(1, cpu::kElementBlock / classes),
               [=](std::int64_t begin, std::int64_t end) {
                 std::fill(rows + begin * classes, rows + end * classes, 0);
                 for (std::int64_t i = begin; i < end; ++i) rows[i * classes + index[i]] = 1;
               });
}

constexpr std::int64_t kMostFactor = 1 << 15;  // of pixel_shuffle(), whose squares are sizes

Tensor repeated(const Tensor& x, const Shape& times, const char* op) {
  LOCKSTEP_CHECK(x.defined() && times.dim() >= x.dim(), "[{}] expected a number for each dimension of {}, found {}", op,
                 to_string(x.sizes()), to_string(times));
  Tensor out = with_leading(x, times.dim());
  for (int d = 0; d < times.dim(); ++d) {
    LOCKSTEP_CHECK(times[d] >= 0, "[{}] expected numbers of at least 0, found {}", op, to_string(times));
    if (times[d] == 1) continue;
    LOCKSTEP_CHECK(times.dim() < Shape::kMaxDims, "[{}] expected at most {} dimensions, found {}", op,
                   Shape::kMaxDims - 1, to_string(times));
    Shape wide = out.sizes(), flat = out.sizes();
    wide.insert(d, times[d]);
    flat[d] *= times[d];
    out = out.unsqueeze(d).expand(wide).reshape(flat);
  }
  return apart(out, x);
}

}  // namespace

Tensor repeat(const Tensor& x, const Shape& times) {
  return repeated(x, times, "repeat");
}

Tensor tile(const Tensor& x, const Shape& times) {
  Shape all = times;
  while (all.dim() < x.dim()) all.insert(0, 1);
  return repeated(x, all, "tile");
}

Tensor repeat_interleave(const Tensor& x, std::int64_t times, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0 && times >= 0,
                 "[repeat_interleave] expected a tensor with dimensions and a number of at least 0, found {}", times);
  LOCKSTEP_CHECK(x.dim() < Shape::kMaxDims, "[repeat_interleave] expected at most {} dimensions, found {}",
                 Shape::kMaxDims - 1, to_string(x.sizes()));
  const int d = wrap_dim(dim, x.dim(), "repeat_interleave");
  Shape wide = x.sizes(), flat = x.sizes();
  wide.insert(d + 1, times);
  flat[d] *= times;
  return apart(x.unsqueeze(d + 1).expand(wide).reshape(flat), x);
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims) {
  LOCKSTEP_CHECK(x.defined(), "[roll] the tensor is undefined");
  if (dims.empty()) {
    LOCKSTEP_CHECK(shifts.dim() == 1, "[roll] expected one shift without dimensions, found {}", to_string(shifts));
    return roll(x.reshape({x.numel()}), shifts, {0}).view(x.sizes());
  }
  LOCKSTEP_CHECK(shifts.dim() == dims.dim(), "[roll] expected a shift for each dimension, found {} for {}",
                 to_string(shifts), to_string(dims));
  Tensor out = x;
  for (int i = 0; i < dims.dim(); ++i) {
    const int d = wrap_dim(dims[i], x.dim(), "roll");
    const std::int64_t n = x.dim() == 0 ? 1 : x.sizes()[d];
    const std::int64_t shift = n == 0 ? 0 : (shifts[i] % n + n) % n;
    if (shift != 0) out = cat({out.narrow(d, n - shift, shift), out.narrow(d, 0, n - shift)}, d);
  }
  return out.is_same(x) ? clone(x) : out;
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes) {
  LOCKSTEP_CHECK(!axes.empty(), "[meshgrid] expected at least one tensor");
  Shape sizes;
  for (const Tensor& axis : axes) {
    LOCKSTEP_CHECK(axis.defined() && axis.dim() <= 1, "[meshgrid] expected tensors of at most one dimension");
    sizes.push_back(axis.numel());
  }
  std::vector<Tensor> grids;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    Shape column = Shape::filled(sizes.dim(), 1);
    column[static_cast<int>(i)] = axes[i].numel();
    grids.push_back(axes[i].reshape(column).expand(sizes));
  }
  return grids;
}

Tensor one_hot(const Tensor& x, std::int64_t classes) {
  LOCKSTEP_CHECK(x.defined() && x.dtype() == kInt64, "[one_hot] expected class indices of dtype int64, found {}",
                 x.defined() ? name(x.dtype()) : "an undefined tensor");
  if (classes == -1) {
    LOCKSTEP_CHECK(x.numel() > 0, "[one_hot] say how many classes: there is no index to tell it from");
    classes = max(x).item<std::int64_t>() + 1;
  }
  if (x.device().is_cpu() && x.numel() > 0) {
    const std::int64_t low = min(x).item<std::int64_t>(), high = max(x).item<std::int64_t>();
    LOCKSTEP_CHECK(low >= 0, "[one_hot] expected class indices of 0 or more, found {}", low);
    LOCKSTEP_CHECK(classes < 1 || high < classes, "[one_hot] expected indices in [0, {}), found {}", classes, high);
  }
  LOCKSTEP_CHECK(classes > 0, "[one_hot] expected at least one class, found {}", classes);
  if (x.device().is_cpu()) {
    Shape sizes = x.unsqueeze(-1).sizes();
    sizes[x.dim()] = classes;
    const Tensor dense = as_contiguous(x), out = empty(sizes, {.dtype = kInt64, .device = x.device()});
    const LibraryAccess access;
    write_one_hot(dense.data<std::int64_t>(), dense.numel(), classes, out.data<std::int64_t>());
    return out;
  }
  return eq(x.unsqueeze(-1), arange(classes, {.dtype = kInt64, .device = x.device()})).to(kInt64);
}

Tensor pixel_shuffle(const Tensor& x, std::int64_t r) {
  LOCKSTEP_CHECK(x.dim() >= 3 && r >= 1 && r <= kMostFactor && x.size(-3) % (r * r) == 0,
                 "[pixel_shuffle] expected sizes [*, c * {}^2, h, w], found {}", r, to_string(x.sizes()));
  const std::int64_t c = x.size(-3) / (r * r), h = x.size(-2), w = x.size(-1);
  const std::int64_t n = c == 0 ? 0 : x.flatten(0, -3).size(0) / (c * r * r);
  Shape sizes = x.sizes();
  sizes[x.dim() - 3] = c;
  sizes[x.dim() - 2] = h * r;
  sizes[x.dim() - 1] = w * r;
  return apart(x.reshape({n, c, r, r, h, w}).permute({0, 1, 4, 2, 5, 3}).reshape(sizes), x);
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t r) {
  LOCKSTEP_CHECK(x.dim() >= 3 && r >= 1 && r <= kMostFactor && x.size(-2) % r == 0 && x.size(-1) % r == 0,
                 "[pixel_unshuffle] expected sizes [*, c, h * {}, w * {}], found {}", r, r, to_string(x.sizes()));
  const std::int64_t c = x.size(-3), h = x.size(-2) / r, w = x.size(-1) / r;
  const std::int64_t n = c == 0 ? 0 : x.flatten(0, -3).size(0) / c;
  Shape sizes = x.sizes();
  sizes[x.dim() - 3] = c * r * r;
  sizes[x.dim() - 2] = h;
  sizes[x.dim() - 1] = w;
  return apart(x.reshape({n, c, h, r, w, r}).permute({0, 1, 3, 5, 2, 4}).reshape(sizes), x);
}

Tensor diag(const Tensor& x, std::int64_t diagonal) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 1 || x.dim() == 2), "[diag] expected one or two dimensions, found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  if (x.dim() == 2) return clone(x.diagonal(diagonal));
  const std::int64_t n = x.size(0), size = n + std::abs(diagonal);
  const std::int64_t first = diagonal >= 0 ? diagonal : -diagonal * size;  // element [0, diagonal] or [-diagonal, 0]
  const Tensor places = arange(n, {.dtype = kInt64, .device = x.device()}) * (size + 1) + first;
  return zeros({size * size}, options_of(x)).scatter(0, places, x).view({size, size});
}

Tensor trace(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined() && x.dim() == 2, "[trace] expected a matrix, found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  return sum(x.diagonal());
}

Tensor diff(const Tensor& x, std::int64_t n, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0 && n >= 0, "[diff] expected a tensor of at least one dimension and n >= 0");
  Tensor out = x;
  for (std::int64_t i = 0; i < n && out.size(dim) > 0; ++i) {
    const std::int64_t rest = out.size(dim) - 1;
    const Tensor high = out.narrow(dim, 1, rest), low = out.narrow(dim, 0, rest);
    out = out.dtype() == kBool ? logical_xor(high, low) : high - low;
  }
  return apart(out, x);
}

}  // namespace lockstep
