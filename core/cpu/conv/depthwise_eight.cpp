#include "lockstep/core/cpu/conv/depthwise_eight.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/cpu/conv/depthwise_parts.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

constexpr std::int64_t kMargin = 32;  // floats before and behind a plane, at most, that vectors read

// Planes of a tensor that may be read beyond their ends: there lie their neighbours, and who has none is copied.
class ReadablePlanes {
 public:
  ReadablePlanes(const float* first, std::int64_t count, std::int64_t size)
      : first_(first), end_(count * size), size_(size), space_(zeros({size + 2 * kMargin})) {}

  // Until the next call.
  const float* operator[](std::int64_t plane) const {
    const std::int64_t at = plane * size_;
    if (at >= kMargin && at + size_ + kMargin <= end_) return first_ + at;
    float* const copy = space_.data<float>() + kMargin;
    std::copy_n(first_ + at, size_, copy);
    return copy;
  }

 private:
  const float* first_;
  std::int64_t end_, size_;
  Tensor space_;
};

// Where the first tap of the first result reads, in each row of an image with its padding.
class Rows {
 public:
  explicit Rows(const Conv& c)
      : c_(c),
        zeros_(zeros({c.stride_w * c.ow + kMargin})),
        rows_(static_cast<std::size_t>(c.stride_h * (c.oh - 1) + c.kh), zeros_.data<float>()) {}

  void set(const float* image) {
    const auto count = std::min(c_.h, static_cast<std::int64_t>(rows_.size()) - c_.padding_h);
    const float** const rows = rows_.data() + c_.padding_h;
    image -= c_.padding_w;
    for (std::int64_t y = 0; y < count; ++y) rows[y] = image + y * c_.w;
  }
  // Those that the results of row y see.
  const float* const* of(std::int64_t y) const { return rows_.data() + c_.stride_h * y; }

 private:
  const Conv& c_;
  Tensor zeros_;
  std::vector<const float*> rows_;
};

// What is read in steps of two has its lanes in the order 0, 1, 4, 5, 2, 3, 6, 7, as one shuffle gives them. To that
// order and back.
template <int kStep>
Vec8 turned(Vec8 v) {
  if constexpr (kStep == 1)
    return v;
  else
    return __builtin_shufflevector(v, v, 0, 1, 4, 5, 2, 3, 6, 7);
}

// What tap k of a row sees for eight results, from where the first tap reads for the first one.
template <int kStep>
[[gnu::always_inline]] inline Vec8 seen_by(int k, const float* from) {
  if constexpr (kStep == 1) return load8(from + k);
  const Vec8 a = load8(from + k / 2 * 2), b = load8(from + k / 2 * 2 + 8);
  return k % 2 == 0 ? __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
                    : __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

// v where the lanes of a mask are set, and 0.
[[gnu::always_inline]] inline Vec8 only(IntVec8 mask, Vec8 v) {
  return reinterpret_cast<Vec8>(mask & reinterpret_cast<IntVec8>(v));
}

// Eight results in a row. Those at its ends need masks.
template <int K>
struct Part {
  std::int64_t x;     // the first one
  bool whole = true;  // all of them count, and see no column beside the image
  IntVec8 counts;     // lanes of results that there are
  IntVec8 inside[K];  // of these, those whose tap is inside the image
};

template <int K, int kStep>
Part<K> part_at(const Conv& c, std::int64_t x) {
  Part<K> part{.x = x, .counts = {}, .inside = {}};
  const IntVec8 lanes = kStep == 1 ? IntVec8{0, 1, 2, 3, 4, 5, 6, 7} : IntVec8{0, 1, 4, 5, 2, 3, 6, 7};
  for (int j = 0; j < 8; ++j) {
    const std::int64_t at = x + lanes[j];
    part.counts[j] = at < c.ow ? -1 : 0;
    for (int k = 0; k < K; ++k) {
      const std::int64_t column = kStep * at + k - c.padding_w;
      part.inside[k][j] = at < c.ow && column >= 0 && column < c.w ? -1 : 0;
      part.whole = part.whole && part.inside[k][j];
    }
  }
  return part;
}

template <int kStep, bool kWhole, int K>
[[gnu::always_inline]] inline Vec8 seen_by(int k, const float* row, const Part<K>& part) {
  const Vec8 seen = seen_by<kStep>(k, row + kStep * part.x);
  return kWhole ? seen : only(part.inside[k], seen);
}

struct Results {
  const float* weights;
  float term;
  bool relu;
  float *out, *end;  // of a plane
  std::int64_t pitch;
};

// Of R rows. What is stored behind a row that is shorter than a vector, the next one overwrites.
template <int K, int kStep, int R, bool kWhole>
void results(const Results& p, const float* const* rows, const Part<K>& part, float* out) {
  Vec8 sum[R];
  for (int r = 0; r < R; ++r) sum[r] = Vec8{};
#pragma GCC unroll 16
  for (int i = 0; i < kStep * (R - 1) + K; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const Vec8 seen = seen_by<kStep, kWhole>(k, rows[i], part);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        if (i >= kStep * r && i < kStep * r + K)
          sum[r] = fma8(broadcast8(p.weights[(i - kStep * r) * K + k]), seen, sum[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r, out += p.pitch) {
    Vec8 value = turned<kStep>(sum[r]) + broadcast8(p.term);
    if (p.relu) value = value < Vec8{} ? Vec8{} : value;
    if (p.end - out >= kLanes)
      store8(out, value);
    else
      for (int j = 0; out + j < p.end; ++j) out[j] = value[j];
  }
}

template <int K, int kStep, int R>
void results(const Results& p, const float* const* rows, const std::vector<Part<K>>& parts, float* out) {
  for (const Part<K>& part : parts)
    part.whole ? results<K, kStep, R, true>(p, rows, part, out + part.x)
               : results<K, kStep, R, false>(p, rows, part, out + part.x);
}

template <int K, int kStep>
void forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out) {
  std::vector<Part<K>> parts;  // the last one overlaps
  for (std::int64_t at = 0; at < c.ow; at += kLanes)
    parts.push_back(part_at<K, kStep>(c, std::max<std::int64_t>(0, std::min(at, c.ow - kLanes))));
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    const ReadablePlanes images(x, c.n * c.in, c.h * c.w);
    Rows rows(c);
    for (std::int64_t plane = begin; plane < end; ++plane) {
      rows.set(images[plane]);
      float* const first = out + plane * c.oh * c.ow;
      const std::int64_t channel = plane % c.in;
      const Results p{weight + channel * K * K, bias ? bias[channel] : 0.0f, relu, first, first + c.oh * c.ow, c.ow};
      std::int64_t y = 0;
      for (; y + 4 <= c.oh; y += 4) results<K, kStep, 4>(p, rows.of(y), parts, first + y * c.ow);
      for (; y + 2 <= c.oh; y += 2) results<K, kStep, 2>(p, rows.of(y), parts, first + y * c.ow);
      for (; y < c.oh; ++y) results<K, kStep, 1>(p, rows.of(y), parts, first + y * c.ow);
    }
  });
}

// Eight gradients times what the taps of kRows rows see.
template <int kStep, bool kWhole, int kRows, int K>
[[gnu::always_inline]] inline void add_to_chains(const float* grad, const float* const* rows, const Part<K>& part,
                                                 Vec8 (&sum)[kRows][K]) {
  Vec8 g = turned<kStep>(load8(grad + part.x));
  if constexpr (!kWhole) g = only(part.counts, g);
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum[i][k] = fma8(g, seen_by<kStep, kWhole>(k, rows[i], part), sum[i][k]);
}

// Of kRows rows of the kernel's taps from `first_row` on, one half of the chains: those of every second part.
template <int K, int kStep, int kRows>
void weight_chains(const Conv& c, const float* grad, const Rows& rows, const std::vector<Part<K>>& parts,
                   std::size_t half, int first_row, float* chains) {
  chains += first_row * K * kChains + static_cast<std::int64_t>(half) * kLanes;
  Vec8 sum[kRows][K];
#pragma GCC unroll 64
  for (int i = 0; i < kRows * K; ++i) sum[i / K][i % K] = turned<kStep>(load8(chains + i * kChains));
  for (std::int64_t y = 0; y < c.oh; ++y, grad += c.ow)
    for (std::size_t i = half; i < parts.size(); i += 2)
      parts[i].whole ? add_to_chains<kStep, true>(grad, rows.of(y) + first_row, parts[i], sum)
                     : add_to_chains<kStep, false>(grad, rows.of(y) + first_row, parts[i], sum);
#pragma GCC unroll 64
  for (int i = 0; i < kRows * K; ++i) store8(chains + i * kChains, turned<kStep>(sum[i / K][i % K]));
}

template <int K, int kStep>
void weight_chains(const Conv& c, const float* grad, const Rows& rows, const std::vector<Part<K>>& parts,
                   float* chains) {
  constexpr int kRows = K == 3 ? 3 : 2;  // whose chains fit in registers
  for (std::size_t half = 0; half < 2; ++half) {
    int row = 0;
    for (; row + kRows <= K; row += kRows) weight_chains<K, kStep, kRows>(c, grad, rows, parts, half, row, chains);
    for (; row < K; ++row) weight_chains<K, kStep, 1>(c, grad, rows, parts, half, row, chains);
  }
}

template <int K, int kStep>
void backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad) {
  constexpr std::int64_t kBlock = 16;  // channels, whose planes of an image are neighbours and so fetched ahead
  constexpr std::int64_t kSize = K * K * kChains;
  std::vector<Part<K>> parts;
  for (std::int64_t at = 0; at < c.ow; at += kLanes) parts.push_back(part_at<K, kStep>(c, at));
  parallel_for(c.in, std::max<std::int64_t>(1, planes_per_task(c) / c.n), [&](std::int64_t begin, std::int64_t end) {
    const ReadablePlanes images(x, c.n * c.in, c.h * c.w), grads(grad, c.n * c.in, c.oh * c.ow);
    Rows rows(c);
    const Tensor space = empty({kBlock * kSize});
    float* const chains = space.data<float>();
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, end - first);
      std::fill_n(chains, count * kSize, 0.0f);
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t j = 0; j < count; ++j) {
          const std::int64_t plane = i * c.in + first + j;
          rows.set(images[plane]);
          weight_chains<K, kStep>(c, grads[plane], rows, parts, chains + j * kSize);
        }
      for (std::int64_t j = 0; j < count; ++j) add_chains(K * K, chains + j * kSize, weight_grad + (first + j) * K * K);
    }
  });
}

}  // namespace

bool eight_serves(const Conv& c) {
  const bool side = c.kh == c.kw && (c.kh == 3 || c.kh == 5 || c.kh == 7);
  const bool step = c.stride_h == c.stride_w && c.stride_h <= 2;
  return side && step && c.padding_h < c.kh && c.padding_w < c.kw && c.dilation_h == 1 && c.dilation_w == 1;
}

void eight_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out) {
  const bool near = c.stride_w == 1;
  if (c.kh == 3) return (near ? forward<3, 1> : forward<3, 2>)(c, x, weight, bias, relu, out);
  if (c.kh == 5) return (near ? forward<5, 1> : forward<5, 2>)(c, x, weight, bias, relu, out);
  (near ? forward<7, 1> : forward<7, 2>)(c, x, weight, bias, relu, out);
}

void eight_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad) {
  const bool near = c.stride_w == 1;
  if (c.kh == 3) return (near ? backward_weight<3, 1> : backward_weight<3, 2>)(c, grad, x, weight_grad);
  if (c.kh == 5) return (near ? backward_weight<5, 1> : backward_weight<5, 2>)(c, grad, x, weight_grad);
  (near ? backward_weight<7, 1> : backward_weight<7, 2>)(c, grad, x, weight_grad);
}

}  // namespace lockstep::cpu::conv_detail
