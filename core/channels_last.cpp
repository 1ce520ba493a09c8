#include "lockstep/core/channels_last.h"

#include <utility>

#include "lockstep/core/copy.h"

namespace lockstep {
namespace {

class LaidOut final : public Computation {
 public:
  explicit LaidOut(Tensor values) : Computation({values}) { lay_out(std::move(values)); }

 private:
  void compute() override {}
};

Shape sizes_in_order(const Shape& last) {
  return {last[0], last[3], last[1], last[2]};
}

}  // namespace

Tensor detail::find_channels_last(const Tensor& tensor) {
  auto* const computation = pending_result_of<Computation>(tensor);
  if (!computation || tensor.dim() != 4 || !tensor.device().is_cuda()) return {};
  Tensor values = computation->channels_last();
  if (values.defined() && sizes_in_order(values.sizes()) != tensor.sizes()) return {};  // of a view
  return values;
}

bool is_laid_out(const Tensor& tensor) {
  const auto* const computation = pending_result_of<Computation>(tensor);
  return computation && computation->is_laid_out();
}

Tensor channels_last_if_followed(const Tensor& tensor) {
  const auto* const computation = pending_result_of<Computation>(tensor);
  return computation && computation->follows_laid_out() ? channels_last_of(tensor) : Tensor();
}

Tensor to_channels_last(const Tensor& tensor) {
  if (Tensor values = channels_last_of(tensor); values.defined()) return values;
  return copy_contiguous(as_channels_last(tensor));
}

Tensor from_channels_last(Tensor values) {
  const TensorOptions options = options_of(values);
  const Shape sizes = sizes_in_order(values.sizes());
  return make_intrusive<LaidOut>(std::move(values))->add_result(sizes, options);
}

Tensor laid_out_like(const Tensor& tensor, const Tensor& other) {
  if (!channels_last_of(other).defined() || channels_last_of(tensor).defined()) return tensor;
  return from_channels_last(to_channels_last(tensor));
}

Tensor as_channels_last(const Tensor& tensor) {
  const Shape &sizes = tensor.sizes(), &strides = tensor.strides();
  return tensor.as_strided({sizes[0], sizes[2], sizes[3], sizes[1]}, {strides[0], strides[2], strides[3], strides[1]},
                           tensor.offset());
}

Tensor in_order_of_channels(const Tensor& values) {
  const Shape &sizes = values.sizes(), &strides = values.strides();
  return values.as_strided(sizes_in_order(sizes), sizes_in_order(strides), values.offset());
}

}  // namespace lockstep
