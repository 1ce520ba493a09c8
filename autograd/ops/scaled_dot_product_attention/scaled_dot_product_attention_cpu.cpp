#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_heads.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/philox_words.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::detail {
namespace {

// Note [Tiles of attention]
// Scores are computed in tiles of kQueries x kKeys by two products on the calling thread, of fixed shapes, in an order
// that follows from the sizes alone. Forward, a task is a block of queries of one head, which goes through the keys
// with a running maximum and sum. Backward, a task is a key's head with all queries that use it, so that no two tasks
// add to one gradient.
constexpr std::int64_t kQueries = 64;
constexpr std::int64_t kKeys = 256;
constexpr std::int64_t kTaskWork = 1 << 19;  // multiply-adds that are worth a thread's while

template <typename C>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, cpu::GemmOperand<C> a, cpu::GemmOperand<C> b, Rows<C> out,
              double alpha, bool add) {
  cpu::Gemm<C> problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = a;
  problem.b = b;
  problem.out = out.data;
  problem.out_stride = out.stride;
  problem.alpha = static_cast<C>(alpha);
  problem.beta = add ? C(1) : C(0);
  cpu::gemm(problem);
}

template <typename C>
cpu::GemmOperand<C> plain(Rows<const C> rows) {
  return {.data = rows.data, .stride = rows.stride};
}
template <typename C>
cpu::GemmOperand<C> transposed(Rows<const C> rows) {
  return {.data = rows.data, .stride = rows.stride, .transposed = true};
}

/// keep[j] for `count` neighbouring weights from number `first`: 0 or the scale of what is kept.
template <typename C>
void keep_factors(const AttentionPlan& plan, philox::Key key, std::int64_t first, std::int64_t count, C* keep) {
  const C scale = static_cast<C>(plan.keep_scale);
  cpu::for_each_words(key, first, count, [&](std::int64_t at, const std::uint32_t* words, std::int64_t found) {
    for (std::int64_t i = 0; i < found; ++i) keep[at + i] = words[i] >= plan.threshold ? scale : C(0);
  });
}

/// A tile of weights: what the plan says of its rows.
template <typename C>
class Tile {
 public:
  Tile(const AttentionPlan& plan, const HeadSizes& sizes, const MaskView<C>& mask, std::int64_t batch,
       std::int64_t head, std::int64_t first_query, std::int64_t first_key, std::int64_t keys)
      : plan_(plan),
        sizes_(sizes),
        mask_(mask),
        batch_(batch),
        head_(head),
        first_query_(first_query),
        first_key_(first_key),
        keys_(keys) {}

  /// Keys of this tile that row i sees, those of a mask not counted.
  std::int64_t seen(std::int64_t i) const {
    return plan_.causal ? std::clamp<std::int64_t>(first_query_ + i + 1 - first_key_, 0, keys_) : keys_;
  }
  /// Puts the mask on the scores of row i.
  void mask(std::int64_t i, C* scores) const {
    if (mask_) mask_.apply(batch_, head_, first_query_ + i, first_key_, keys_, scores);
  }
  /// keep_factors() of all rows, [rows][keys].
  void decide(philox::Key key, std::int64_t rows, C* keep) const {
    const std::int64_t row = plan_.head_number(batch_, head_, sizes_.heads) * sizes_.queries + first_query_;
    if (keys_ == sizes_.keys) return keep_factors(plan_, key, row * sizes_.keys, rows * keys_, keep);
    for (std::int64_t i = 0; i < rows; ++i)
      keep_factors(plan_, key, (row + i) * sizes_.keys + first_key_, keys_, keep + i * keys_);
  }

 private:
  const AttentionPlan& plan_;
  const HeadSizes& sizes_;
  const MaskView<C>& mask_;
  std::int64_t batch_, head_, first_query_, first_key_, keys_;
};

/// Keys that a block of queries up to `end` has to go through.
std::int64_t keys_of(const AttentionPlan& plan, const HeadSizes& sizes, std::int64_t end) {
  return plan.causal ? std::min(sizes.keys, end) : sizes.keys;
}

template <typename C>
void forward_block(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, std::int64_t head, std::int64_t first, Rows<const C> query, Rows<const C> key,
                   Rows<const C> value, Rows<C> out, C* log_sums, C* scores, C* keep) {
  constexpr C kNone = -std::numeric_limits<C>::infinity();
  const std::int64_t rows = std::min(kQueries, sizes.queries - first);
  C top[kQueries], sum[kQueries];
  std::fill_n(top, rows, kNone);
  std::fill_n(sum, rows, C(0));
  const std::int64_t limit = keys_of(plan, sizes, first + rows);
  for (std::int64_t k = 0; k < limit; k += kKeys) {
    const std::int64_t keys = std::min(kKeys, limit - k);
    const Tile<C> tile(plan, sizes, mask, batch, head, first, k, keys);
    multiply<C>(rows, keys, sizes.width, plain<C>(query.from(first)), transposed<C>(key.from(k)), {scores, keys},
                plan.scale, false);
    if (plan.dropout) tile.decide(dropout_key, rows, keep);
    for (std::int64_t i = 0; i < rows; ++i) {
      C* s = scores + i * keys;
      const std::int64_t seen = tile.seen(i);
      std::fill(s + seen, s + keys, C(0));
      if (seen == 0) continue;
      tile.mask(i, s);
      const C highest = std::max(top[i], cpu::lane_max<C>(seen, s));
      const C shift = highest == kNone ? C(0) : highest;
      LOCKSTEP_VECTORIZE
      for (std::int64_t j = 0; j < seen; ++j) s[j] = math::exp(s[j] - shift);
      const C row_sum = cpu::lane_sum<C>(seen, [&](std::int64_t j) { return s[j]; });
      if (k > 0) {
        const C factor = top[i] == kNone ? C(0) : math::exp(top[i] - shift);
        sum[i] *= factor;
        C* o = out.at(first + i);
        for (std::int64_t d = 0; d < sizes.value_width; ++d) o[d] *= factor;
      }
      top[i] = highest;
      sum[i] += row_sum;
      if (plan.dropout)
        for (std::int64_t j = 0; j < seen; ++j) s[j] *= keep[i * keys + j];
    }
    multiply<C>(rows, sizes.value_width, keys, {.data = scores, .stride = keys}, plain<C>(value.from(k)),
                out.from(first), 1.0, k > 0);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool none = sum[i] == C(0);
    log_sums[i] = none ? -kNone : top[i] + math::log(sum[i]);
    const C factor = none ? C(0) : C(1) / sum[i];
    C* o = out.at(first + i);
    for (std::int64_t d = 0; d < sizes.value_width; ++d) o[d] *= factor;
  }
}

template <typename C>
void forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, const Tensor& out,
             const Tensor& log_sums, const AttentionPlan& plan) {
  const HeadSizes sizes(query, key, value);
  const MaskView<C> mask_view(mask);
  const philox::Key dropout_key = plan.dropout ? plan.key.get() : philox::Key{};
  const std::int64_t blocks = (sizes.queries + kQueries - 1) / kQueries;
  const std::int64_t work = std::min(kQueries, sizes.queries) * sizes.keys * (sizes.width + sizes.value_width);
  C* const sums = log_sums.data<C>();
  lockstep::parallel_for(sizes.batch * sizes.heads * blocks, std::max<std::int64_t>(1, kTaskWork / work),
                         [&](std::int64_t begin, std::int64_t end) {
                           const std::size_t tile = static_cast<std::size_t>(kQueries * std::min(kKeys, sizes.keys));
                           std::vector<C> scratch(plan.dropout ? 2 * tile : tile);
                           for (std::int64_t task = begin; task < end; ++task) {
                             const std::int64_t head = task / blocks % sizes.heads, batch = task / blocks / sizes.heads;
                             const std::int64_t first = task % blocks * kQueries, kv_head = head / sizes.group;
                             forward_block<C>(plan, dropout_key, sizes, mask_view, batch, head, first,
                                              head_rows<const C>(query, batch, head),
                                              head_rows<const C>(key, batch, kv_head),
                                              head_rows<const C>(value, batch, kv_head), head_rows<C>(out, batch, head),
                                              sums + (batch * sizes.heads + head) * sizes.queries + first,
                                              scratch.data(), scratch.data() + tile);
                           }
                         });
}

/// With P the weights, K what dropout multiplies them by and delta = sum(grad * out) = sum(P * K * dP) of a row:
/// grad_value = (P * K)^T grad; dP = grad value^T; dS = P * (dP * K - delta) * scale; grad_query = dS key;
/// grad_key = dS^T query.
template <typename C>
void backward_head(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, std::int64_t head, Rows<const C> query, Rows<const C> key, Rows<const C> value,
                   Rows<const C> out, Rows<const C> grad, const C* log_sums, Rows<C> grad_query, Rows<C> grad_key,
                   Rows<C> grad_value, C* weights, C* slopes, C* keep) {
  const C scale = static_cast<C>(plan.scale);
  for (std::int64_t first = 0; first < sizes.queries; first += kQueries) {
    const std::int64_t rows = std::min(kQueries, sizes.queries - first);
    C delta[kQueries];
    for (std::int64_t i = 0; i < rows; ++i) {
      const C *g = grad.at(first + i), *o = out.at(first + i);
      delta[i] = cpu::lane_sum<C>(sizes.value_width, [&](std::int64_t d) { return g[d] * o[d]; });
    }
    const std::int64_t limit = keys_of(plan, sizes, first + rows);
    for (std::int64_t k = 0; k < limit; k += kKeys) {
      const std::int64_t keys = std::min(kKeys, limit - k);
      const Tile<C> tile(plan, sizes, mask, batch, head, first, k, keys);
      multiply<C>(rows, keys, sizes.width, plain<C>(query.from(first)), transposed<C>(key.from(k)), {weights, keys},
                  plan.scale, false);
      multiply<C>(rows, keys, sizes.value_width, plain<C>(grad.from(first)), transposed<C>(value.from(k)),
                  {slopes, keys}, 1.0, false);
      if (plan.dropout) tile.decide(dropout_key, rows, keep);
      for (std::int64_t i = 0; i < rows; ++i) {
        C *p = weights + i * keys, *s = slopes + i * keys;
        const std::int64_t seen = tile.seen(i);
        std::fill(p + seen, p + keys, C(0));
        std::fill(s + seen, s + keys, C(0));
        if (seen == 0) continue;
        tile.mask(i, p);
        const C log_sum = log_sums[first + i];
        LOCKSTEP_VECTORIZE
        for (std::int64_t j = 0; j < seen; ++j) p[j] = math::exp(p[j] - log_sum);
        if (plan.dropout) {
          const C* factor = keep + i * keys;
          for (std::int64_t j = 0; j < seen; ++j) {
            s[j] = p[j] * (s[j] * factor[j] - delta[i]) * scale;
            p[j] *= factor[j];
          }
        } else {
          for (std::int64_t j = 0; j < seen; ++j) s[j] = p[j] * (s[j] - delta[i]) * scale;
        }
      }
      const cpu::GemmOperand<C> p{.data = weights, .stride = keys}, s{.data = slopes, .stride = keys};
      const auto turned = [](cpu::GemmOperand<C> operand) {
        operand.transposed = true;
        return operand;
      };
      multiply<C>(keys, sizes.value_width, rows, turned(p), plain<C>(grad.from(first)), grad_value.from(k), 1.0, true);
      multiply<C>(rows, sizes.width, keys, s, plain<C>(key.from(k)), grad_query.from(first), 1.0, k > 0);
      multiply<C>(keys, sizes.width, rows, turned(s), plain<C>(query.from(first)), grad_key.from(k), 1.0, true);
    }
  }
}

template <typename C>
void backward(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key, const Tensor& grad_value,
              const AttentionPlan& plan) {
  const HeadSizes sizes(saved.query, saved.key, saved.value);
  const MaskView<C> mask(saved.mask);
  const philox::Key dropout_key = plan.dropout ? plan.key.get() : philox::Key{};
  const std::int64_t kv_heads = sizes.heads / sizes.group;
  const std::int64_t work = sizes.queries * sizes.keys * (sizes.width + sizes.value_width) * sizes.group * 2;
  const C* const log_sums = saved.log_sums.data<C>();
  lockstep::parallel_for(
      sizes.batch * kv_heads, std::max<std::int64_t>(1, kTaskWork / work), [&](std::int64_t begin, std::int64_t end) {
        const std::size_t tile =
            static_cast<std::size_t>(std::min(kQueries, sizes.queries) * std::min(kKeys, sizes.keys));
        std::vector<C> scratch((plan.dropout ? 3 : 2) * tile);
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t batch = task / kv_heads, kv_head = task % kv_heads;
          const Rows<C> to_key = head_rows<C>(grad_key, batch, kv_head),
                        to_value = head_rows<C>(grad_value, batch, kv_head);
          for (std::int64_t s = 0; s < sizes.keys; ++s) {
            std::fill_n(to_key.at(s), sizes.width, C(0));
            std::fill_n(to_value.at(s), sizes.value_width, C(0));
          }
          for (std::int64_t head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head)
            backward_head<C>(
                plan, dropout_key, sizes, mask, batch, head, head_rows<const C>(saved.query, batch, head),
                head_rows<const C>(saved.key, batch, kv_head), head_rows<const C>(saved.value, batch, kv_head),
                head_rows<const C>(saved.out, batch, head), head_rows<const C>(saved.grad, batch, head),
                log_sums + (batch * sizes.heads + head) * sizes.queries, head_rows<C>(grad_query, batch, head), to_key,
                to_value, scratch.data(), scratch.data() + tile, scratch.data() + 2 * tile);
          const C* const sums = log_sums + (batch * sizes.heads + kv_head * sizes.group) * sizes.queries;
          if (!plan.causal || std::none_of(sums, sums + sizes.group * sizes.queries, [](C v) { return v != v; }))
            continue;
          for (std::int64_t s = 0; s < sizes.keys; ++s) {  // also of keys that the query does not see
            std::fill_n(to_key.at(s), sizes.width, std::numeric_limits<C>::quiet_NaN());
            std::fill_n(to_value.at(s), sizes.value_width, std::numeric_limits<C>::quiet_NaN());
          }
        }
      });
}

}  // namespace

void attention_cpu(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, const Tensor& out,
                   const Tensor& log_sums, const AttentionPlan& plan) {
  in_compute_type(query, key, value, out,
                  [&]<typename C>(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o) {
                    forward<C>(q, k, v, mask, o, log_sums, plan);
                  });
}

void attention_backward_cpu(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                            const Tensor& grad_value, const AttentionPlan& plan) {
  backward_in_compute_type(
      saved, grad_query, grad_key, grad_value,
      [&]<typename C>(const AttentionSaved& wide, const Tensor& to_query, const Tensor& to_key,
                      const Tensor& to_value) { backward<C>(wide, to_query, to_key, to_value, plan); });
}

}  // namespace lockstep::detail
