#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_tiles.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::detail {
namespace {

constexpr std::int64_t kTaskWork = 1 << 19;  // multiply-adds that are worth a thread's while
constexpr std::int64_t kShares = 4;          // of a thread, where there are many heads

/// How many tasks of `work` multiply-adds are done one after the other with the same work space: whole heads, of
/// `tasks` tasks each, where there are many. A task gives the same bits wherever it is done.
std::int64_t tasks_together(std::int64_t heads, std::int64_t tasks, std::int64_t work) {
  const std::int64_t share = heads / (kShares * num_threads());
  return std::max<std::int64_t>({1, kTaskWork / work, share * tasks});
}

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
void forward_block(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, std::int64_t head, std::int64_t first, Rows<const C> query,
                   TurnedRows<C>& turned_key, Rows<const C> value, Rows<C> out, C* log_sums, C* scores, C* keep) {
  constexpr C kNone = -std::numeric_limits<C>::infinity();
  const std::int64_t rows = std::min(kQueries, sizes.queries - first);
  C top[kQueries], sum[kQueries];
  std::fill_n(top, rows, kNone);
  std::fill_n(sum, rows, C(0));
  const std::int64_t limit = keys_of(plan, sizes, first + rows);
  for (std::int64_t k = 0; k < limit; k += kKeys) {
    const std::int64_t keys = std::min(kKeys, limit - k);
    const Tile<C> tile(plan, sizes, mask, batch, head, first, k, keys);
    const cpu::GemmOperand<C> turned = turned_key.tile(k, keys, rows);
    if (plan.dropout) tile.decide(dropout_key, rows, keep);
    tile.for_each_strip(rows, [&](std::int64_t begin, std::int64_t end, std::int64_t across) {
      multiply<C>(end - begin, across, sizes.width, plain<C>(query.from(first + begin)), turned,
                  {scores + begin * keys, keys}, plan.scale, false);
      for (std::int64_t i = begin; i < end; ++i) {
        C* s = scores + i * keys;
        const std::int64_t seen = tile.seen(i), padded = std::min(across, (seen + kPad - 1) / kPad * kPad);
        std::fill(s + seen, s + padded, kNone);  // instead of loops to `seen`, whose last elements go one by one
        if (seen > 0) {
          tile.mask(i, s);
          const C highest = std::max(top[i], highest_score<C>(padded, s));
          const C shift = highest == kNone ? C(0) : highest;
          const C row_sum = exponentials<C>(s, seen, padded, shift);
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
        std::fill(s + seen, s + across, C(0));
      }
      multiply<C>(end - begin, sizes.value_width, across, {.data = scores + begin * keys, .stride = keys},
                  plain<C>(value.from(k)), out.from(first + begin), 1.0, k > 0);
    });
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
  lockstep::parallel_for(sizes.batch * sizes.heads * blocks, tasks_together(sizes.batch * sizes.heads, blocks, work),
                         [&](std::int64_t begin, std::int64_t end) {
                           const std::int64_t tile = kQueries * std::min(kKeys, sizes.keys);
                           const Tensor space = empty({plan.dropout ? 2 * tile : tile}, {.dtype = dtype_of<C>});
                           C* const scores = space.data<C>();
                           TurnedRows<C> turned_key(sizes.keys, sizes.width);
                           for (std::int64_t task = begin; task < end; ++task) {
                             const std::int64_t head = task / blocks % sizes.heads, batch = task / blocks / sizes.heads;
                             const std::int64_t first = task % blocks * kQueries, kv_head = head / sizes.group;
                             turned_key.take(head_rows<const C>(key, batch, kv_head));
                             forward_block<C>(plan, dropout_key, sizes, mask_view, batch, head, first,
                                              head_rows<const C>(query, batch, head), turned_key,
                                              head_rows<const C>(value, batch, kv_head), head_rows<C>(out, batch, head),
                                              sums + (batch * sizes.heads + head) * sizes.queries + first, scores,
                                              scores + tile);
                           }
                         });
}

/// With P the weights, K what dropout multiplies them by and delta = sum(grad * out) = sum(P * K * dP) of a row:
/// grad_value = (P * K)^T grad; dP = grad value^T; dS = P * (dP * K - delta) * scale; grad_query = dS key;
/// grad_key = dS^T query.
template <typename C>
void backward_head(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, std::int64_t head, Rows<const C> query, Rows<const C> key,
                   TurnedRows<C>& turned_key, TurnedRows<C>& turned_value, Rows<const C> out, Rows<const C> grad,
                   const C* log_sums, Rows<C> grad_query, Rows<C> grad_key, Rows<C> grad_value, C* weights, C* slopes,
                   C* keep) {
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
      const cpu::GemmOperand<C> turned = turned_key.tile(k, keys, rows), turned_v = turned_value.tile(k, keys, rows);
      if (plan.dropout) tile.decide(dropout_key, rows, keep);
      tile.for_each_strip(rows, [&](std::int64_t begin, std::int64_t end, std::int64_t across) {
        const Rows<C> p_rows{weights + begin * keys, keys}, s_rows{slopes + begin * keys, keys};
        multiply<C>(end - begin, across, sizes.width, plain<C>(query.from(first + begin)), turned, p_rows, plan.scale,
                    false);
        multiply<C>(end - begin, across, sizes.value_width, plain<C>(grad.from(first + begin)), turned_v, s_rows, 1.0,
                    false);
        for (std::int64_t i = begin; i < end; ++i) {
          C *p = weights + i * keys, *s = slopes + i * keys;
          const std::int64_t seen = tile.seen(i), padded = std::min(across, (seen + kPad - 1) / kPad * kPad);
          tile.mask(i, p);
          const C log_sum = log_sums[first + i];
          if (plan.dropout) {
            LOCKSTEP_VECTORIZE
            for (std::int64_t j = 0; j < padded; ++j) p[j] = math::exp(p[j] - log_sum);
            const C* factor = keep + i * keys;
            for (std::int64_t j = 0; j < seen; ++j) {
              s[j] = p[j] * (s[j] * factor[j] - delta[i]) * scale;
              p[j] *= factor[j];
            }
          } else {
            weights_and_slopes<C>(p, s, padded, log_sum, delta[i], scale);
          }
          std::fill(p + seen, p + across, C(0));
          std::fill(s + seen, s + across, C(0));
        }
        multiply<C>(end - begin, sizes.width, across, {.data = s_rows.data, .stride = keys}, plain<C>(key.from(k)),
                    grad_query.from(first + begin), 1.0, k > 0);
      });
      tile.for_each_strip_of_keys(rows, [&](std::int64_t j, std::int64_t count, std::int64_t row) {
        const std::int64_t at = row * keys + j;
        multiply<C>(count, sizes.value_width, rows - row, transposed<C>({weights + at, keys}),
                    plain<C>(grad.from(first + row)), grad_value.from(k + j), 1.0, true);
        multiply<C>(count, sizes.width, rows - row, transposed<C>({slopes + at, keys}),
                    plain<C>(query.from(first + row)), grad_key.from(k + j), 1.0, true);
      });
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
      sizes.batch * kv_heads, tasks_together(sizes.batch * kv_heads, 1, work),
      [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t tile = std::min(kQueries, sizes.queries) * std::min(kKeys, sizes.keys);
        const Tensor space = empty({(plan.dropout ? 3 : 2) * tile}, {.dtype = dtype_of<C>});
        C* const scratch = space.data<C>();
        TurnedRows<C> turned_key(sizes.keys, sizes.width), turned_value(sizes.keys, sizes.value_width);
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t batch = task / kv_heads, kv_head = task % kv_heads;
          turned_key.take(head_rows<const C>(saved.key, batch, kv_head));
          turned_value.take(head_rows<const C>(saved.value, batch, kv_head));
          const Rows<C> to_key = head_rows<C>(grad_key, batch, kv_head),
                        to_value = head_rows<C>(grad_value, batch, kv_head);
          for (std::int64_t s = 0; s < sizes.keys; ++s) {
            std::fill_n(to_key.at(s), sizes.width, C(0));
            std::fill_n(to_value.at(s), sizes.value_width, C(0));
          }
          for (std::int64_t head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head)
            backward_head<C>(plan, dropout_key, sizes, mask, batch, head, head_rows<const C>(saved.query, batch, head),
                             head_rows<const C>(saved.key, batch, kv_head), turned_key, turned_value,
                             head_rows<const C>(saved.out, batch, head), head_rows<const C>(saved.grad, batch, head),
                             log_sums + (batch * sizes.heads + head) * sizes.queries,
                             head_rows<C>(grad_query, batch, head), to_key, to_value, scratch, scratch + tile,
                             scratch + 2 * tile);
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
  profile::add_multiply_adds(log_sums.numel() * key.size(-2) * (key.size(-1) + value.size(-1)));
  in_compute_type(query, key, value, out,
                  [&]<typename C>(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o) {
                    forward<C>(q, k, v, mask, o, log_sums, plan);
                  });
}

void attention_backward_cpu(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                            const Tensor& grad_value, const AttentionPlan& plan) {
  profile::add_multiply_adds(saved.log_sums.numel() * saved.key.size(-2) *
                             (3 * saved.key.size(-1) + 2 * saved.value.size(-1)));
  backward_in_compute_type(
      saved, grad_query, grad_key, grad_value,
      [&]<typename C>(const AttentionSaved& wide, const Tensor& to_query, const Tensor& to_key,
                      const Tensor& to_value) { backward<C>(wide, to_query, to_key, to_value, plan); });
}

}  // namespace lockstep::detail
