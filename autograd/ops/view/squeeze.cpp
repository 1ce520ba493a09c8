#include "lockstep/autograd/ops/view/view.h"

namespace lockstep {

// Memory laid out in any way can be viewed with dimensions of size 1 put in or left out, so view() serves.

Tensor Tensor::squeeze() const {
  Shape kept;
  for (std::int64_t size : sizes())
    if (size != 1) kept.push_back(size);
  return view(kept);
}

Tensor Tensor::squeeze(std::int64_t dim) const {
  const int d = wrap_dim(dim, this->dim(), "squeeze");
  Shape kept = sizes();
  if (!kept.empty() && kept[d] == 1) kept.erase(d);
  return view(kept);
}

Tensor Tensor::squeeze(const Shape& dims) const {
  Shape kept;
  for (int d = 0; d < dim(); ++d) {
    bool drop = false;
    for (const std::int64_t listed : dims) drop = drop || wrap_dim(listed, dim(), "squeeze") == d;
    if (!drop || sizes()[d] != 1) kept.push_back(sizes()[d]);
  }
  return view(kept);
}

Tensor Tensor::unsqueeze(std::int64_t dim) const {
  Shape widened = sizes();
  widened.insert(wrap_dim(dim, this->dim() + 1, "unsqueeze"), 1);
  return view(widened);
}

Tensor squeeze(const Tensor& x) {
  return x.squeeze();
}
Tensor squeeze(const Tensor& x, std::int64_t dim) {
  return x.squeeze(dim);
}
Tensor squeeze(const Tensor& x, const Shape& dims) {
  return x.squeeze(dims);
}
Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  return x.unsqueeze(dim);
}

}  // namespace lockstep
