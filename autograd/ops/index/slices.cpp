// Indices of numbers, slices, None and "..." beside tensors.

#include <limits>
#include <string_view>

#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace indexing {

TensorIndex::TensorIndex(const char* dots) : kind_(Kind::ellipsis) {
  LOCKSTEP_CHECK(dots && std::string_view(dots) == "...", "[index] expected \"...\" among the indices, found \"{}\"",
                 dots ? dots : "null");
}

}  // namespace indexing

namespace {

using indexing::TensorIndex;

/// What numbers, slices, None and "..." make of a tensor, and the tensors that are left to index it with.
struct Sliced {
  Tensor view;
  std::vector<Tensor> tensors;
  bool any_tensor = false;
};

int dims_of(const TensorIndex& index) {
  switch (index.kind()) {
    case TensorIndex::Kind::none:
    case TensorIndex::Kind::ellipsis:
      return 0;
    case TensorIndex::Kind::tensor:
      return index.tensor().defined() && index.tensor().dtype() == kBool ? index.tensor().dim() : 1;
    default:
      return 1;
  }
}

Sliced slice_by(const Tensor& x, std::initializer_list<TensorIndex> indices, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  int taken = 0, dots = 0;
  for (const TensorIndex& index : indices) {
    taken += dims_of(index);
    dots += index.kind() == TensorIndex::Kind::ellipsis;
  }
  LOCKSTEP_CHECK(dots <= 1, "[{}] expected one \"...\" at most, found {}", op, dots);
  LOCKSTEP_CHECK(taken <= x.dim(), "[{}] too many indices for a tensor of shape {}: {}", op, to_string(x.sizes()),
                 taken);
  Sliced out{x, {}};
  int at = 0;  // dimension of the view
  const auto pass_over = [&](int dims) {
    out.tensors.resize(out.tensors.size() + static_cast<std::size_t>(dims));
    at += dims;
  };
  for (const TensorIndex& index : indices) {
    switch (index.kind()) {
      case TensorIndex::Kind::none:
        out.view = out.view.unsqueeze(at);
        pass_over(1);
        break;
      case TensorIndex::Kind::ellipsis:
        pass_over(x.dim() - taken);
        break;
      case TensorIndex::Kind::number:
        out.view = out.view.select(at, index.number());
        break;
      case TensorIndex::Kind::slice: {
        const auto& slice = index.slice();
        out.view =
            out.view.slice(at, slice.start.value_or(0), slice.stop.value_or(std::numeric_limits<std::int64_t>::max()),
                           slice.step.value_or(1));
        pass_over(1);
        break;
      }
      case TensorIndex::Kind::tensor: {
        const Tensor& tensor = index.tensor();
        if (tensor.defined() && tensor.dim() == 0 && tensor.dtype() != kBool && !tensor.is_floating_point()) {
          out.view = out.view.select(at, tensor.item<std::int64_t>());
          break;
        }
        out.tensors.push_back(tensor);
        at += dims_of(index);
        out.any_tensor = out.any_tensor || tensor.defined();
        break;
      }
    }
  }
  return out;
}

}  // namespace

Tensor index(const Tensor& x, std::initializer_list<TensorIndex> indices) {
  const Sliced sliced = slice_by(x, indices, "index");
  return sliced.any_tensor ? index(sliced.view, sliced.tensors) : sliced.view;
}

Tensor Tensor::index(std::initializer_list<TensorIndex> indices) const {
  return lockstep::index(*this, indices);
}
const Tensor& Tensor::index_put_(std::initializer_list<TensorIndex> indices, const Tensor& values) const {
  LOCKSTEP_CHECK(values.defined(), "[index_put_] the values are undefined");
  const Sliced sliced = slice_by(*this, indices, "index_put_");
  if (sliced.any_tensor) {
    sliced.view.index_put_(sliced.tensors, values.to(dtype()));
    return *this;
  }
  LOCKSTEP_CHECK(broadcast_shapes(values.sizes(), sliced.view.sizes(), "index_put_") == sliced.view.sizes(),
                 "[index_put_] values of shape {} do not broadcast to the shape {} of what is indexed",
                 to_string(values.sizes()), to_string(sliced.view.sizes()));
  write_values(sliced.view, values, "index_put_");
  return *this;
}
const Tensor& Tensor::index_put_(std::initializer_list<TensorIndex> indices, Scalar value) const {
  check_in_range(value, dtype(), "index_put_");
  return index_put_(indices, scalar_tensor(value, options()));
}

}  // namespace lockstep
