#include "lockstep/autograd/ops/reduce/reduce_dims.h"

#include "lockstep/core/check.h"

namespace lockstep {

ReduceDims::ReduceDims(const Tensor& x, const Shape& dims, bool keepdim, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  sizes = x.sizes();
  if (dims.empty()) reduced.fill(true);
  for (std::int64_t dim : dims) {
    const int d = wrap_dim(dim, x.dim(), op);
    LOCKSTEP_CHECK(!reduced[static_cast<std::size_t>(d)], "[{}] dimension {} appears twice in {}", op, d,
                   to_string(dims));
    reduced[static_cast<std::size_t>(d)] = true;
  }
  kept_sizes = sizes;
  for (int d = 0; d < sizes.dim(); ++d) {
    if (!reduced[static_cast<std::size_t>(d)]) {
      result_sizes.push_back(sizes[d]);
      continue;
    }
    count *= sizes[d];
    kept_sizes[d] = 1;
    if (keepdim) result_sizes.push_back(1);
  }
}

std::pair<std::int64_t, std::int64_t> ReduceDims::as_middle() const {
  std::int64_t length = 1, inner = 1;
  int d = sizes.dim() - 1;
  const auto kept = [&] { return !reduced[static_cast<std::size_t>(d)] || sizes[d] == 1; };
  for (; d >= 0 && kept(); --d) inner *= sizes[d];
  for (; d >= 0 && (!kept() || sizes[d] == 1); --d) length *= sizes[d];
  for (; d >= 0; --d)
    if (!kept()) return {0, 0};
  return sizes.numel() == 0 ? std::pair<std::int64_t, std::int64_t>{0, 0} : std::pair{length, inner};
}

Tensor ReduceDims::with_kept_dims(const Tensor& result) const {
  if (result.dim() == sizes.dim()) return result;
  Shape strides = Shape::filled(sizes.dim(), 1);
  for (int d = 0, next = 0; d < sizes.dim(); ++d)
    if (!reduced[static_cast<std::size_t>(d)]) strides[d] = result.strides()[next++];
  return result.as_strided(kept_sizes, strides, result.offset());
}

Tensor ReduceDims::spread(const Tensor& result) const {
  Shape strides = Shape::filled(sizes.dim(), 0);
  const bool kept = result.dim() == sizes.dim();
  for (int d = 0, next = 0; d < sizes.dim(); ++d) {
    if (kept) next = d;
    if (!reduced[static_cast<std::size_t>(d)]) strides[d] = result.strides()[next++];
  }
  return result.as_strided(sizes, strides, result.offset());
}

}  // namespace lockstep
