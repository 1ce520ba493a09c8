#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_heads.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/core/double_math.h"

namespace lockstep::detail {
namespace {

// In double whatever C is: not the functions of float that the kernels use.
template <typename C>
C exp(C x) {
  return static_cast<C>(math::portable_exp(static_cast<double>(x)));
}
template <typename C>
C log(C x) {
  return static_cast<C>(math::portable_log(static_cast<double>(x)));
}

/// One query and the heads that it sees.
template <typename C>
struct Query {
  const AttentionPlan& plan;
  const HeadSizes& sizes;
  const MaskView<C>& mask;
  std::int64_t batch, head, row;

  std::int64_t number() const { return (batch * sizes.heads + head) * sizes.queries + row; }

  std::vector<C> scores(const C* query, Rows<const C> key) const {
    std::vector<C> scores(static_cast<std::size_t>(sizes.keys), -std::numeric_limits<C>::infinity());
    for (std::int64_t s = 0; s < sizes.keys; ++s) {
      if (plan.causal && s > row) continue;
      C dot = 0;
      for (std::int64_t d = 0; d < sizes.width; ++d) dot += query[d] * key.at(s)[d];
      scores[static_cast<std::size_t>(s)] = dot * static_cast<C>(plan.scale);
    }
    if (mask) mask.apply(batch, head, row, 0, sizes.keys, scores.data());
    return scores;
  }

  /// 0, or the scale of weights that dropout keeps.
  C keep(std::int64_t key) const {
    if (!plan.dropout) return C(1);
    const auto element = static_cast<std::uint64_t>(
        (plan.head_number(batch, head, sizes.heads) * sizes.queries + row) * sizes.keys + key);
    return philox::word_at(plan.key.get(), element) >= plan.threshold ? static_cast<C>(plan.keep_scale) : C(0);
  }
};

template <typename Body>
void for_each_query(const HeadSizes& sizes, Body&& body) {
  for (std::int64_t n = 0; n < sizes.batch; ++n)
    for (std::int64_t h = 0; h < sizes.heads; ++h)
      for (std::int64_t l = 0; l < sizes.queries; ++l) body(n, h, l);
}

template <typename C>
void forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, const Tensor& out,
             const Tensor& log_sums, const AttentionPlan& plan) {
  const HeadSizes sizes(query, key, value);
  const MaskView<C> mask_view(mask);
  for_each_query(sizes, [&](std::int64_t n, std::int64_t h, std::int64_t l) {
    const Query<C> one{plan, sizes, mask_view, n, h, l};
    const Rows<const C> values = head_rows<const C>(value, n, h / sizes.group);
    const std::vector<C> scores =
        one.scores(head_rows<const C>(query, n, h).at(l), head_rows<const C>(key, n, h / sizes.group));
    C top = -std::numeric_limits<C>::infinity(), sum = 0;
    for (const C score : scores) top = score > top ? score : top;
    if (std::isinf(top) && top < 0) top = 0;
    for (const C score : scores) sum += exp(score - top);
    const C log_sum = sum == C(0) ? std::numeric_limits<C>::infinity() : top + log(sum);
    log_sums.data<C>()[one.number()] = log_sum;
    C* const o = head_rows<C>(out, n, h).at(l);
    for (std::int64_t d = 0; d < sizes.value_width; ++d) {
      C result = 0;
      for (std::int64_t s = 0; s < sizes.keys; ++s)
        result += exp(scores[static_cast<std::size_t>(s)] - log_sum) * one.keep(s) * values.at(s)[d];
      o[d] = result;
    }
  });
}

template <typename C>
void backward(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key, const Tensor& grad_value,
              const AttentionPlan& plan) {
  const HeadSizes sizes(saved.query, saved.key, saved.value);
  const MaskView<C> mask(saved.mask);
  for (const Tensor& t : {grad_query, grad_key, grad_value}) fill_values(t, 0);
  for_each_query(sizes, [&](std::int64_t n, std::int64_t h, std::int64_t l) {
    const Query<C> one{plan, sizes, mask, n, h, l};
    const std::int64_t g = h / sizes.group;
    const Rows<const C> keys = head_rows<const C>(saved.key, n, g), values = head_rows<const C>(saved.value, n, g);
    const Rows<C> to_keys = head_rows<C>(grad_key, n, g), to_values = head_rows<C>(grad_value, n, g);
    const C *q = head_rows<const C>(saved.query, n, h).at(l), *o = head_rows<const C>(saved.out, n, h).at(l),
            *grad = head_rows<const C>(saved.grad, n, h).at(l);
    C* const to_query = head_rows<C>(grad_query, n, h).at(l);
    const std::vector<C> scores = one.scores(q, keys);
    const C log_sum = saved.log_sums.data<C>()[one.number()];
    C delta = 0;
    for (std::int64_t d = 0; d < sizes.value_width; ++d) delta += grad[d] * o[d];
    for (std::int64_t s = 0; s < sizes.keys; ++s) {
      const C weight = exp(scores[static_cast<std::size_t>(s)] - log_sum), keep = one.keep(s);
      C slope = 0;
      for (std::int64_t d = 0; d < sizes.value_width; ++d) {
        to_values.at(s)[d] += weight * keep * grad[d];
        slope += grad[d] * values.at(s)[d];
      }
      slope = weight * (slope * keep - delta) * static_cast<C>(plan.scale);
      for (std::int64_t d = 0; d < sizes.width; ++d) {
        to_query[d] += slope * keys.at(s)[d];
        to_keys.at(s)[d] += slope * q[d];
      }
    }
  });
}

}  // namespace

void attention_reference(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
                         const Tensor& out, const Tensor& log_sums, const AttentionPlan& plan) {
  in_compute_type(query, key, value, out,
                  [&]<typename C>(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o) {
                    forward<C>(q, k, v, mask, o, log_sums, plan);
                  });
}

void attention_backward_reference(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                                  const Tensor& grad_value, const AttentionPlan& plan) {
  backward_in_compute_type(
      saved, grad_query, grad_key, grad_value,
      [&]<typename C>(const AttentionSaved& wide, const Tensor& to_query, const Tensor& to_key,
                      const Tensor& to_value) { backward<C>(wide, to_query, to_key, to_value, plan); });
}

}  // namespace lockstep::detail
