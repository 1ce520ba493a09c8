#pragma once

// How kernels on the CPU see the operands of attention. For .cpp files only.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {

struct HeadSizes {
  std::int64_t batch, heads, queries, keys, width, value_width;
  std::int64_t group;  ///< heads of query that share one of key

  HeadSizes(const Tensor& query, const Tensor& key, const Tensor& value)
      : batch(query.size(0)),
        heads(query.size(1)),
        queries(query.size(2)),
        keys(key.size(2)),
        width(query.size(3)),
        value_width(value.size(3)),
        group(query.size(1) / key.size(1)) {}
};

/// Rows of one head.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;

  T* at(std::int64_t row) const { return data + row * stride; }
  Rows from(std::int64_t row) const { return {at(row), stride}; }
};

template <typename T>
Rows<T> head_rows(const Tensor& t, std::int64_t batch, std::int64_t head) {
  return {t.data<std::remove_const_t<T>>() + batch * t.strides()[0] + head * t.strides()[1], t.strides()[2]};
}

/// A mask, if there is one.
template <typename C>
class MaskView {
 public:
  explicit MaskView(const Tensor& mask) {
    if (!mask.defined()) return;
    data_ = mask.raw_data();
    is_bool_ = mask.dtype() == kBool;
    strides_ = mask.strides();
  }
  explicit operator bool() const { return data_ != nullptr; }

  /// Puts it on the scores of `count` keys from `first_key`.
  void apply(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t first_key, std::int64_t count,
             C* scores) const {
    const std::int64_t step = strides_[3];
    const std::int64_t at = batch * strides_[0] + head * strides_[1] + query * strides_[2] + first_key * step;
    if (is_bool_) {
      const bool* mask = static_cast<const bool*>(data_) + at;
      for (std::int64_t j = 0; j < count; ++j)
        if (!mask[j * step]) scores[j] = -std::numeric_limits<C>::infinity();
    } else {
      const C* mask = static_cast<const C*>(data_) + at;
      for (std::int64_t j = 0; j < count; ++j) scores[j] += mask[j * step];
    }
  }

 private:
  const void* data_ = nullptr;
  bool is_bool_ = false;
  Shape strides_;
};

/// Calls body.operator()<C>(query, key, value, out) with tensors of the type C that is computed in: copies, for the
/// half types.
template <typename Body>
void in_compute_type(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out, Body&& body) {
  if (query.dtype() == kFloat64) return body.template operator()<double>(query, key, value, out);
  if (query.dtype() == kFloat32) return body.template operator()<float>(query, key, value, out);
  const Tensor wide = empty(out.sizes());
  body.template operator()<float>(cast_values(query, kFloat32), cast_values(key, kFloat32),
                                  cast_values(value, kFloat32), wide);
  copy_values(wide, out);
}

/// The same for backward.
template <typename Body>
void backward_in_compute_type(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                              const Tensor& grad_value, Body&& body) {
  if (saved.query.dtype() == kFloat64) return body.template operator()<double>(saved, grad_query, grad_key, grad_value);
  if (saved.query.dtype() == kFloat32) return body.template operator()<float>(saved, grad_query, grad_key, grad_value);
  const auto wide = [](const Tensor& t) { return cast_values(t, kFloat32); };
  const Tensor to_query = empty(grad_query.sizes()), to_key = empty(grad_key.sizes()),
               to_value = empty(grad_value.sizes());
  body.template operator()<float>(AttentionSaved{.query = wide(saved.query),
                                                 .key = wide(saved.key),
                                                 .value = wide(saved.value),
                                                 .mask = saved.mask,
                                                 .out = wide(saved.out),
                                                 .log_sums = saved.log_sums,
                                                 .grad = wide(saved.grad)},
                                  to_query, to_key, to_value);
  copy_values(to_query, grad_query);
  copy_values(to_key, grad_key);
  copy_values(to_value, grad_value);
}

}  // namespace lockstep::detail
