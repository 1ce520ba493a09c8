#include <algorithm>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

void check_mask(const Tensor& x, const Tensor& mask, const char* op) {
  LOCKSTEP_CHECK(x.defined() && mask.defined(), "[{}] the {} is undefined", op, x.defined() ? "mask" : "tensor");
  LOCKSTEP_CHECK(mask.dtype() == kBool, "[{}] expected a bool mask, found {}; compare it to something", op,
                 name(mask.dtype()));
  LOCKSTEP_CHECK(mask.device() == x.device(), "[{}] the mask is on {} and the tensor on {}; move one of them", op,
                 to_string(mask.device()), to_string(x.device()));
}

/// bool, integer or floating point.
int category(DType dtype) {
  return dtype == kBool ? 0 : is_floating_point(dtype) ? 2 : 1;
}

}  // namespace

Tensor nonzero(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[nonzero] the tensor is undefined");
  const NoGradGuard values_only;
  const Tensor host = as_contiguous(move_values(x.dtype() == kBool ? x : x != 0, {}));
  const LibraryAccess access;
  const auto* chosen = static_cast<const std::uint8_t*>(host.raw_data());  // as bytes, which can be counted by vectors
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < host.numel(); ++i) count += chosen[i];
  const int dims = x.dim();
  const Tensor positions = empty({count, dims}, {.dtype = kInt64});
  if (dims == 0 || count == 0) return move_values(positions, x.device());
  constexpr std::int64_t kPiece = 256;
  std::int64_t* row = positions.data<std::int64_t>();
  const std::int64_t width = x.sizes()[dims - 1], lines = host.numel() / width;
  Shape at = Shape::filled(dims, 0);  // of a line
  for (std::int64_t line = 0; line < lines; ++line, chosen += width) {
    for (std::int64_t begin = 0; begin < width; begin += kPiece) {
      // Every place is noted, and kept if the element is chosen: a branch could not be foreseen.
      std::int64_t found[kPiece], n = 0;
      for (std::int64_t i = begin; i < std::min(begin + kPiece, width); ++i) {
        found[n] = i;
        n += chosen[i];
      }
      for (std::int64_t f = 0; f < n; ++f, row += dims) {
        for (int d = 0; d + 1 < dims; ++d) row[d] = at[d];
        row[dims - 1] = found[f];
      }
    }
    for (int d = dims - 2; d >= 0 && ++at[d] == x.sizes()[d]; --d) at[d] = 0;
  }
  return move_values(positions, x.device());
}

std::vector<Tensor> where(const Tensor& condition) {
  return nonzero(condition).unbind(1);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_mask(x, mask, "masked_select");
  const Shape sizes = broadcast_shapes(x.sizes(), mask.sizes(), "masked_select");
  const Tensor chosen = nonzero(mask.expand(sizes).reshape({-1}));
  return x.expand(sizes).reshape({-1}).index_select(0, chosen.view({-1}));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  check_mask(x, mask, "masked_fill");
  LOCKSTEP_CHECK(value.defined() && value.dim() == 0, "[masked_fill] expected a value without dimensions, found {}",
                 value.defined() ? to_string(value.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(category(value.dtype()) <= category(x.dtype()),
                 "[masked_fill] a {} value does not go into a {} tensor; convert the tensor with to() first",
                 name(value.dtype()), name(x.dtype()));
  return where(mask, value.to(x.dtype()).to(x.device()), x);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  check_mask(x, mask, "masked_fill");
  check_in_range(value, x.dtype(), "masked_fill");
  return where(mask, scalar_tensor(value, options_of(x)), x);
}

Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source) {
  check_mask(x, mask, "masked_scatter");
  LOCKSTEP_CHECK(source.defined() && source.dtype() == x.dtype(), "[masked_scatter] expected a source of dtype {}",
                 name(x.dtype()));
  const Shape sizes = broadcast_shapes(x.sizes(), mask.sizes(), "masked_scatter");
  const Tensor places = nonzero(mask.expand(sizes).reshape({-1})).view({-1});
  LOCKSTEP_CHECK(places.numel() <= source.numel(), "[masked_scatter] the mask names {} elements, and the source has {}",
                 places.numel(), source.numel());
  const Tensor values = source.reshape({-1}).narrow(0, 0, places.numel());
  return scatter(x.expand(sizes).reshape({-1}), 0, places, values).view(sizes);
}

Tensor Tensor::masked_select(const Tensor& mask) const {
  return lockstep::masked_select(*this, mask);
}
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value) const {
  return lockstep::masked_fill(*this, mask, value);
}
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const {
  return lockstep::masked_fill(*this, mask, value);
}
const Tensor& Tensor::masked_fill_(const Tensor& mask, Scalar value) const {
  const Tensor filled = lockstep::masked_fill(*this, mask, value);
  LOCKSTEP_CHECK(filled.sizes() == sizes(),
                 "[masked_fill_] a mask of shape {} does not broadcast to the tensor's shape {}",
                 to_string(mask.sizes()), to_string(sizes()));
  return replace_values(*this, filled, "masked_fill_");
}

}  // namespace lockstep
