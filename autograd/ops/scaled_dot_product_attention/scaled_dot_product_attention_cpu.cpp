#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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
constexpr std::int64_t kRowsAhead = 6;       // between a row that is read and one that is asked for
constexpr std::int64_t kShares = 4;          // of a thread, where there are many heads

/// How many tasks of `work` multiply-adds are done one after the other with the same work space: whole heads, of
/// `tasks` tasks each, where there are many. A task gives the same bits wherever it is done.
std::int64_t tasks_together(std::int64_t heads, std::int64_t tasks, std::int64_t work) {
  const std::int64_t share = heads / (kShares * num_threads());
  return std::max<std::int64_t>({1, kTaskWork / work, share * tasks});
}

template <typename C>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, cpu::GemmOperand<C> a, cpu::GemmOperand<C> b, Rows<C> out,
              double alpha, bool add, const C* bias = nullptr) {
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
  problem.bias = bias;
  cpu::gemm(problem);
}

template <typename C>
void scale_row(C* row, std::int64_t width, C factor) {
  for (std::int64_t d = 0; d < width; ++d) row[d] *= factor;
}

template <typename C>
void forward_block(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, std::int64_t head, std::int64_t first, Rows<const C> query,
                   TurnedRows<C>& turned_key, Rows<const C> value, Rows<C> out, C* log_sums, C* scores, C* keep) {
  constexpr C kNone = -std::numeric_limits<C>::infinity();
  const std::int64_t rows = std::min(kQueries, sizes.queries - first);
  C top[kQueries], sum[kQueries], factor[kQueries];
  std::fill_n(top, rows, kNone);
  std::fill_n(sum, rows, C(0));
  const std::int64_t limit = keys_of(plan, sizes, first + rows), stride = tile_stride(sizes);
  for (std::int64_t k = 0; k < limit; k += kKeys) {
    const std::int64_t keys = std::min(kKeys, limit - k);
    const Tile<C> tile(plan, sizes, mask, batch, head, first, k, keys);
    const cpu::GemmOperand<C> turned = turned_key.tile(k, keys, rows);
    if (plan.dropout) tile.decide(dropout_key, rows, keep);
    tile.for_each_strip(rows, [&](std::int64_t begin, std::int64_t end, std::int64_t across) {
      multiply<C>(end - begin, across, sizes.width, plain<C>(query.from(first + begin)), turned,
                  {scores + begin * stride, stride}, plan.scale, false);
      const RowStrip<C> strip = tile.strip(begin, end, across, scores, stride);
      for (std::int64_t i = begin; i < end; ++i) tile.mask(i, scores + i * stride);
      weigh<C>(strip, top + begin, sum + begin, factor + begin);
      for (std::int64_t i = begin; i < end; ++i) {
        if (k > 0 && factor[i] != C(1)) scale_row(out.at(first + i), sizes.value_width, factor[i]);
        if (plan.dropout)
          for (std::int64_t j = 0; j < strip.seen_by(i - begin); ++j) scores[i * stride + j] *= keep[i * keys + j];
      }
      multiply<C>(end - begin, sizes.value_width, across, {.data = scores + begin * stride, .stride = stride},
                  plain<C>(value.from(k)), out.from(first + begin), 1.0, k > 0);
    });
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool none = sum[i] == C(0);
    log_sums[i] = none ? -kNone : top[i] + math::log(sum[i]);
    scale_row(out.at(first + i), sizes.value_width, none ? C(0) : C(1) / sum[i]);
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
                           const std::int64_t tile = kQueries * tile_stride(sizes);
                           const Tensor space = empty({plan.dropout ? 2 * tile : tile}, {.dtype = dtype_of<C>});
                           C* const scores = space.data<C>();
                           TurnedRows<C> turned_key(sizes.keys, sizes.width, sizes.keys);
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

/// What backward reads and writes of one head's queries.
template <typename C>
struct QueryHead {
  std::int64_t head;
  Rows<const C> query, out, grad;
  const C* log_sums;
  Rows<C> grad_query;
  C* delta;    ///< sum(grad * out) of each row
  bool leads;  ///< the first of those that share keys

  QueryHead(const AttentionSaved& saved, const Tensor& to, std::int64_t batch, std::int64_t number, C* deltas,
            bool first)
      : head(number),
        query(head_rows<const C>(saved.query, batch, number)),
        out(head_rows<const C>(saved.out, batch, number)),
        grad(head_rows<const C>(saved.grad, batch, number)),
        log_sums(saved.log_sums.data<C>() + (batch * saved.query.size(1) + number) * saved.query.size(2)),
        grad_query(head_rows<C>(to, batch, number)),
        delta(deltas),
        leads(first) {}
};

/// One head's keys and their gradients; work space for a tile.
template <typename C>
struct KeyHead {
  Rows<const C> key;
  TurnedRows<C>&turned_key, &turned_value;
  Rows<C> grad_key, grad_value;
  C *weights, *slopes, *keep;
  const C* zeros;  ///< as many as a row is wide
};

/// weigh_slopes() where weights are multiplied by keep[row][key].
template <typename C>
void dropped_slopes(const RowStrip<C>& weights, C* slopes, const C* keep, const C* log_sums, const C* deltas, C scale) {
  for (std::int64_t i = 0; i < weights.count; ++i, keep += weights.keys) {
    C *const p = weights.rows + i * weights.stride, *const s = slopes + i * weights.stride;
    const std::int64_t seen = weights.seen_by(i);
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < seen; ++j) p[j] = math::exp_to_one(p[j] - log_sums[i]);
    for (std::int64_t j = 0; j < seen; ++j) {
      s[j] = p[j] * (s[j] * keep[j] - deltas[i]) * scale;
      p[j] *= keep[j];
    }
    std::fill(p + seen, p + weights.across, C(0));
    std::fill(s + seen, s + weights.across, C(0));
  }
}

/// The tile of the queries from `first` and the keys from k. With P the weights, K what dropout multiplies them by and
/// delta = sum(grad * out) = sum(P * K * dP) of a row: grad_value = (P * K)^T grad; dP = grad value^T;
/// dS = P * (dP * K - delta) * scale; grad_query = dS key; grad_key = dS^T query.
template <typename C>
void backward_tile(const AttentionPlan& plan, philox::Key dropout_key, const HeadSizes& sizes, const MaskView<C>& mask,
                   std::int64_t batch, const QueryHead<C>& q, const KeyHead<C>& to, std::int64_t first,
                   std::int64_t k) {
  const C scale = static_cast<C>(plan.scale);
  const std::int64_t rows = std::min(kQueries, sizes.queries - first), stride = tile_stride(sizes);
  const std::int64_t keys = std::min(kKeys, keys_of(plan, sizes, first + rows) - k);
  const Tile<C> tile(plan, sizes, mask, batch, q.head, first, k, keys);
  const cpu::GemmOperand<C> turned = to.turned_key.tile(k, keys, rows);
  const cpu::GemmOperand<C> turned_value = to.turned_value.tile(k, keys, rows);
  if (plan.dropout) tile.decide(dropout_key, rows, to.keep);
  tile.for_each_strip(rows, [&](std::int64_t begin, std::int64_t end, std::int64_t across) {
    const Rows<C> p_rows{to.weights + begin * stride, stride}, s_rows{to.slopes + begin * stride, stride};
    multiply<C>(end - begin, across, sizes.width, plain<C>(q.query.from(first + begin)), turned, p_rows, plan.scale,
                false);
    multiply<C>(end - begin, across, sizes.value_width, plain<C>(q.grad.from(first + begin)), turned_value, s_rows, 1.0,
                false);
    const RowStrip<C> strip = tile.strip(begin, end, across, to.weights, stride);
    for (std::int64_t i = begin; i < end; ++i) tile.mask(i, to.weights + i * stride);
    const C *log_sums = q.log_sums + first + begin, *deltas = q.delta + first + begin;
    if (plan.dropout)
      dropped_slopes<C>(strip, s_rows.data, to.keep + begin * keys, log_sums, deltas, scale);
    else
      weigh_slopes<C>(strip, s_rows.data, log_sums, deltas, scale);
    multiply<C>(end - begin, sizes.width, across, {.data = s_rows.data, .stride = stride}, plain<C>(to.key.from(k)),
                q.grad_query.from(first + begin), 1.0, k > 0);
  });
  // The first product for a key is not added to anything but 0, without which it might be -0.
  tile.for_each_strip_of_keys(rows, [&](std::int64_t j, std::int64_t count, std::int64_t row) {
    const std::int64_t at = row * stride + j;
    const bool add = !q.leads || (plan.causal ? k + j < first : first > 0);
    multiply<C>(count, sizes.value_width, rows - row, transposed<C>({to.weights + at, stride}),
                plain<C>(q.grad.from(first + row)), to.grad_value.from(k + j), 1.0, add, add ? nullptr : to.zeros);
    multiply<C>(count, sizes.width, rows - row, transposed<C>({to.slopes + at, stride}),
                plain<C>(q.query.from(first + row)), to.grad_key.from(k + j), 1.0, add, add ? nullptr : to.zeros);
  });
}

/// Of the keys from `first`.
template <typename C>
void fill_gradients(const KeyHead<C>& to, const HeadSizes& sizes, std::int64_t first, C value) {
  for (std::int64_t s = first; s < sizes.keys; ++s) {
    std::fill_n(to.grad_key.at(s), sizes.width, value);
    std::fill_n(to.grad_value.at(s), sizes.value_width, value);
  }
}

/// Tiles of the same keys one after the other: these, their gradients and what is transposed of them stay in a cache,
/// and queries and theirs are less than that.
template <typename C>
void backward(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key, const Tensor& grad_value,
              const AttentionPlan& plan) {
  const HeadSizes sizes(saved.query, saved.key, saved.value);
  const MaskView<C> mask(saved.mask);
  const philox::Key dropout_key = plan.dropout ? plan.key.get() : philox::Key{};
  const std::int64_t kv_heads = sizes.heads / sizes.group;
  const std::int64_t work = sizes.queries * sizes.keys * (sizes.width + sizes.value_width) * sizes.group * 2;
  lockstep::parallel_for(
      sizes.batch * kv_heads, tasks_together(sizes.batch * kv_heads, 1, work),
      [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t tile = std::min(kQueries, sizes.queries) * tile_stride(sizes);
        const std::int64_t widest = std::max(sizes.width, sizes.value_width), deltas = sizes.group * sizes.queries;
        const Tensor space = empty({(plan.dropout ? 3 : 2) * tile + widest + deltas}, {.dtype = dtype_of<C>});
        C* const tiles = space.data<C>();
        C* const zeros = tiles + space.numel() - widest - deltas;
        std::fill_n(zeros, widest, C(0));
        TurnedRows<C> turned_key(sizes.keys, sizes.width, 1), turned_value(sizes.keys, sizes.value_width, 1);
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t batch = task / kv_heads, kv_head = task % kv_heads;
          const KeyHead<C> to{head_rows<const C>(saved.key, batch, kv_head),
                              turned_key,
                              turned_value,
                              head_rows<C>(grad_key, batch, kv_head),
                              head_rows<C>(grad_value, batch, kv_head),
                              tiles,
                              tiles + tile,
                              tiles + 2 * tile,
                              zeros};
          turned_key.take(to.key);
          turned_value.take(head_rows<const C>(saved.value, batch, kv_head));
          // Others are written by products.
          fill_gradients<C>(to, sizes,
                            std::min(sizes.keys, plan.causal         ? sizes.queries
                                                 : sizes.queries > 0 ? sizes.keys
                                                                     : 0),
                            C(0));
          std::vector<QueryHead<C>> heads;
          bool poisoned = false;  // a NaN among the sums
          for (std::int64_t g = 0; g < sizes.group; ++g) {
            const auto& q = heads.emplace_back(saved, grad_query, batch, kv_head * sizes.group + g,
                                               zeros + widest + g * sizes.queries, g == 0);
            for (std::int64_t i = 0; i < sizes.queries; ++i) {
              const C *gradient = q.grad.at(i), *o = q.out.at(i);
              for (std::int64_t d = 0; d < sizes.value_width; d += kPad) {
                __builtin_prefetch(q.grad.at(i + kRowsAhead) + d);
                __builtin_prefetch(q.out.at(i + kRowsAhead) + d);
              }
              q.delta[i] = cpu::lane_sum<C>(sizes.value_width, [&](std::int64_t d) { return gradient[d] * o[d]; });
              poisoned |= q.log_sums[i] != q.log_sums[i];
            }
          }
          for (std::int64_t k = 0; k < sizes.keys; k += kKeys)
            for (const QueryHead<C>& q : heads)
              for (std::int64_t first = 0; first < sizes.queries; first += kQueries)
                if (k < keys_of(plan, sizes, std::min(first + kQueries, sizes.queries)))
                  backward_tile<C>(plan, dropout_key, sizes, mask, batch, q, to, first, k);
          // Also of keys that the query does not see.
          if (plan.causal && poisoned) fill_gradients<C>(to, sizes, 0, std::numeric_limits<C>::quiet_NaN());
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
