#include "lockstep/autograd/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  std::string name;
  Shape query, key, value;
  AttentionOptions options = {};
  Shape mask = {};  // of -inf where it is left out, as bool or as numbers
  bool bool_mask = false;
};

Tensor mask_of(const Case& c, const Tensor& values) {
  const Tensor seen = values > -0.3;
  if (c.bool_mask) return seen;
  return where(seen, values, Scalar(-INFINITY));
}

/// By loops: the operation holds all weights, and leading dimensions repeat as they broadcast.
TensorList plain(const Case& c, const TensorList& in) {
  const std::int64_t length = c.query[c.query.dim() - 2], keys = c.key[c.key.dim() - 2];
  const double scale = c.options.scale.value_or(1 / std::sqrt(static_cast<double>(c.query.back())));
  Tensor key = in[1], value = in[2];
  if (c.options.enable_gqa) {
    TensorList wide_key, wide_value;
    const std::int64_t group = in[0].size(-3) / key.size(-3);
    for (std::int64_t h = 0; h < in[0].size(-3); ++h) {
      wide_key.push_back(key.select(-3, h / group));
      wide_value.push_back(value.select(-3, h / group));
    }
    key = stack(wide_key, -3);
    value = stack(wide_value, -3);
  }
  Tensor scores = matmul(in[0] * scale, key.transpose(-2, -1));
  if (c.options.is_causal)
    scores = where(tril(ones({length, keys}, {.dtype = kFloat64})) == 1.0, scores, Scalar(-INFINITY));
  if (in.size() > 3) {
    const Tensor mask = mask_of(c, in[3]);
    scores = c.bool_mask ? where(mask, scores, Scalar(-INFINITY)) : scores + mask;
  }
  const Tensor weights = softmax(scores, -1);
  return {matmul(where(isnan(weights), zeros_like(weights), weights), value)};
}

OpCase as_case(const Case& c) {
  return {.name = c.name,
          .inputs =
              [=] {
                TensorList in{make_leaf(c.query, 1), make_leaf(c.key, 2), make_leaf(c.value, 3)};
                if (!c.mask.empty()) in.push_back(make_input(c.mask, 4));
                return in;
              },
          .run =
              [=](const TensorList& in) {
                AttentionOptions options = c.options;
                if (in.size() > 3) options.attn_mask = mask_of(c, in[3]);
                return TensorList{scaled_dot_product_attention(in[0], in[1], in[2], options)};
              },
          .slack = 4,
          .expected = [=](const TensorList& in) { return plain(c, in); }};
}

const Case kCases[] = {
    {"plain", {2, 3, 5, 4}, {2, 3, 7, 4}, {2, 3, 7, 6}},
    {"causal", {2, 2, 6, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {.is_causal = true}},
    {"causal_more_keys", {1, 2, 4, 3}, {1, 2, 9, 3}, {1, 2, 9, 3}, {.is_causal = true}},
    {"causal_more_queries", {1, 2, 9, 3}, {1, 2, 4, 3}, {1, 2, 4, 3}, {.is_causal = true}},
    {"matrices", {5, 4}, {7, 4}, {7, 2}},
    {"three_dimensions", {3, 5, 4}, {3, 7, 4}, {3, 7, 2}, {.scale = 0.7}},
    {"five_dimensions", {2, 1, 2, 3, 4}, {2, 1, 2, 5, 4}, {2, 1, 2, 5, 2}, {.is_causal = true}},
    {"broadcast", {2, 3, 5, 4}, {1, 3, 7, 4}, {7, 6}},
    {"numbers_as_mask", {2, 2, 5, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {}, {5, 6}},
    {"mask_of_keys", {2, 2, 5, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {}, {2, 1, 1, 6}, true},
    {"mask_of_pairs", {2, 2, 5, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {}, {2, 2, 5, 6}, true},
    {"grouped", {2, 6, 5, 4}, {2, 2, 7, 4}, {2, 2, 7, 3}, {.enable_gqa = true}},
    {"grouped_causal", {1, 4, 6, 4}, {1, 2, 6, 4}, {1, 2, 6, 4}, {.is_causal = true, .enable_gqa = true}},
    {"grouped_broadcast", {6, 5, 4}, {2, 2, 7, 4}, {1, 2, 7, 3}, {.enable_gqa = true}},
    {"one_query", {2, 2, 1, 8}, {2, 2, 33, 8}, {2, 2, 33, 8}},
    {"one_key", {2, 2, 4, 8}, {2, 2, 1, 8}, {2, 2, 1, 8}, {.is_causal = true}},
    {"several_tiles", {1, 2, 130, 8}, {1, 2, 600, 8}, {1, 2, 600, 5}},
    {"strips", {1, 2, 100, 8}, {1, 2, 100, 8}, {1, 2, 100, 24}, {.is_causal = true}},
    {"strips_more_keys", {1, 1, 100, 8}, {1, 1, 300, 8}, {1, 1, 300, 8}, {.is_causal = true}},
    {"strips_more_queries", {1, 1, 150, 8}, {1, 1, 70, 8}, {1, 1, 70, 8}, {.is_causal = true}},
    {"several_tiles_causal", {1, 2, 530, 8}, {1, 2, 530, 8}, {1, 2, 530, 8}, {.is_causal = true}},
    {"several_tiles_masked", {1, 2, 70, 8}, {1, 2, 530, 8}, {1, 2, 530, 8}, {}, {70, 530}, true},
};

class Attention : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ops, Attention, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });
TEST_P(Attention, ValuesAndGradients) {
  check_op(as_case(GetParam()));
}

TEST(AttentionThreads, BitsAreThoseOfOneThread) {
  for (const bool causal : {false, true})
    check_threads(as_case({"", {3, 4, 150, 16}, {3, 4, 150, 16}, {3, 4, 150, 16}, {.is_causal = causal}}));
}

TEST(AttentionValues, QueryWithoutKeysGivesZeroAndNoGradient) {
  const Tensor q = make_leaf({2, 4}, 1), k = make_leaf({3, 4}, 2), v = make_leaf({3, 4}, 3);
  const Tensor mask = tensor<bool>({false, true}).view({2, 1}).expand({2, 3});
  const Tensor out = scaled_dot_product_attention(q, k, v, {.attn_mask = mask});
  out.sum().backward();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(out[0][i].item(), 0.0);
    EXPECT_EQ(q.grad()[0][i].item(), 0.0);
  }
  EXPECT_TRUE(k.grad().isfinite().all().item<bool>());
}

TEST(AttentionValues, DropoutDropsWhatTheOperationsWould) {
  for (const std::int64_t keys : {12, 33, 300})
    for (const bool causal : {false, true}) {
      const Shape sizes{2, 3, keys, 8};
      const auto run = [&](auto&& attention) {
        const TensorList in{make_leaf(sizes, 1), make_leaf(sizes, 2), make_leaf(sizes, 3)};
        manual_seed(5);
        TensorList out{attention(in[0], in[1], in[2])};
        (out[0] * make_input(sizes, 9)).sum().backward();
        for (const Tensor& t : in) out.push_back(t.grad());
        return out;
      };
      const TensorList fused = run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
        return scaled_dot_product_attention(q, k, v, {.dropout_p = 0.3, .is_causal = causal});
      });
      const TensorList parts = run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
        Tensor scores = matmul(q, k.transpose(-2, -1)) * (1 / std::sqrt(8.0));
        if (causal) scores = scores + triu(full({keys, keys}, -1e300, {.dtype = kFloat64}), 1);
        return matmul(dropout(softmax(scores, -1), 0.3), v);
      });
      for (std::size_t i = 0; i < fused.size(); ++i) expect_close(fused[i], parts[i], 1e-10, 1e-12);
    }
}

// Each half of the heads, by both kernels and by the operations.
TEST(AttentionValues, DropoutOfSomeHeadsIsThatOfAll) {
  for (const std::int64_t keys : {12, 300}) {
    const Shape sizes{2, 6, keys, 8};
    const TensorList all{make_input(sizes, 1), make_input(sizes, 2), make_input(sizes, 3)};
    const Tensor mask = make_leaf({keys, keys}, 4);
    const auto run = [&](const TensorList& in, AttentionOptions options) {
      manual_seed(5);
      options.dropout_p = 0.3;
      return scaled_dot_product_attention(in[0], in[1], in[2], options).detach();
    };
    for (const bool composed : {false, true})
      for (const bool reference : {false, true}) {
        set_reference_kernels(reference);
        const Tensor whole = run(all, {.attn_mask = composed ? mask : Tensor()});
        for (const std::int64_t first : {0, 2, 3}) {
          TensorList some;
          for (const Tensor& t : all) some.push_back(t.narrow(1, first, 3));
          const Tensor part = run(some, {.attn_mask = composed ? mask : Tensor(), .first_head = first, .all_heads = 6});
          expect_close(part, copy_contiguous(whole.narrow(1, first, 3)), 1e-12, 1e-14);
        }
      }
    set_reference_kernels(false);
  }
  const Tensor q = make_input({1, 3, 4, 4}, 1);
  EXPECT_NE(error_of([&] {
              scaled_dot_product_attention(q, q, q, {.dropout_p = 0.1, .first_head = 2, .all_heads = 4});
            }).find("3 heads from number 2 on are no part of 4"),
            std::string::npos);
}

TEST(AttentionValues, MaskThatRequiresGradientsGetsThem) {
  const Tensor q = make_input({2, 2, 3, 4}, 1), k = make_input({2, 1, 5, 4}, 2), v = make_input({2, 1, 5, 4}, 3);
  const Tensor mask = make_leaf({3, 5}, 4);
  const Tensor with = scaled_dot_product_attention(q, k, v, {.attn_mask = mask, .enable_gqa = true});
  const Tensor without = scaled_dot_product_attention(q, k, v, {.attn_mask = mask.detach(), .enable_gqa = true});
  expect_close(with.detach(), without, 1e-12, 1e-14);
  with.sum().backward();
  EXPECT_EQ(mask.grad().sizes(), mask.sizes());
}

class PackedAttention : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(KeyHeads, PackedAttention, ::testing::Values(1, 2, 4));
TEST_P(PackedAttention, IsAttentionOfTheParts) {
  const std::int64_t heads = 4, kv_heads = GetParam(), length = 9, d = 3;
  check_op({.name = "",
            .inputs =
                [=] {
                  return TensorList{make_leaf({2, length, (heads + 2 * kv_heads) * d}, 1)};
                },
            .run =
                [=](const TensorList& in) {
                  return TensorList{packed_attention(in[0], heads, kv_heads, {.is_causal = true})};
                },
            .slack = 4,
            .expected =
                [=](const TensorList& in) {
                  const auto parts = in[0].detach().split_with_sizes({heads * d, kv_heads * d, kv_heads * d}, 2);
                  const auto apart = [&](std::size_t i, std::int64_t count) {
                    return parts[i].reshape({2, length, count, d}).transpose(1, 2);
                  };
                  return TensorList{scaled_dot_product_attention(apart(0, heads), apart(1, kv_heads),
                                                                 apart(2, kv_heads),
                                                                 {.is_causal = true, .enable_gqa = true})
                                        .transpose(1, 2)
                                        .reshape({2, length, heads * d})};
                }});
}

// Heads cut out of one tensor: what is computed from them has the bits that contiguous copies give, and lies as they
// do.
TEST(AttentionLayout, HeadsCutOutOfOneTensorAreNotCopied) {
  for (const auto& [batch, kv_heads] : {std::pair{2, 4}, {1, 4}, {2, 2}}) {
    const std::int64_t heads = 4, length = 20, d = 8, width = (heads + 2 * kv_heads) * d;
    manual_seed(1);
    const Tensor x = randn({batch, length, width}).set_requires_grad(true), weight = randn({batch, length, heads * d});
    const auto run = [&, n = batch, kv = kv_heads](bool copies) {
      const std::vector<Tensor> parts = x.split_with_sizes({heads * d, kv * d, kv * d}, 2);
      const auto apart = [&](std::size_t i, std::int64_t count) {
        const Tensor part = parts[i].view({n, length, count, d}).transpose(1, 2);
        return copies ? part.contiguous() : part;
      };
      const Tensor y = scaled_dot_product_attention(apart(0, heads), apart(1, kv), apart(2, kv),
                                                    {.is_causal = true, .enable_gqa = true});
      EXPECT_EQ(y.is_contiguous(), copies);
      const Tensor joined = y.transpose(1, 2).reshape({n, length, heads * d});
      EXPECT_EQ(joined.storage() == y.storage(), !copies);
      return std::pair{joined.detach(), autograd::grad({(joined * weight).sum()}, {x})[0]};
    };
    const auto [values, gradient] = run(false);
    const auto [copied_values, copied_gradient] = run(true);
    EXPECT_TRUE(equal(values, copied_values)) << batch << " " << kv_heads;
    EXPECT_TRUE(equal(gradient, copied_gradient)) << batch << " " << kv_heads;
  }
}

TEST(AttentionLayout, GradientsOfLeavesAreTheirOwn) {
  const std::vector<Tensor> parts = make_input({2, 5, 3 * 6}, 1).split(6, 2);
  TensorList leaves;
  for (const Tensor& part : parts)
    leaves.push_back(part.view({2, 5, 2, 3}).transpose(1, 2).detach().set_requires_grad(true));
  scaled_dot_product_attention(leaves[0], leaves[1], leaves[2]).sum().backward();
  for (const Tensor& leaf : leaves) {
    EXPECT_TRUE(leaf.grad().is_contiguous());
    EXPECT_NE(leaf.grad().storage(), leaf.storage());
  }
  EXPECT_NE(leaves[0].grad().storage(), leaves[1].grad().storage());
}

// One head of keys and values that all of a query's broadcast to: their gradients are sums of gradients, which have no
// room among the parts.
TEST(AttentionLayout, OneHeadOfKeysThatBroadcasts) {
  constexpr std::int64_t heads = 4, length = 20, d = 8;
  const Tensor x = make_leaf({2, length, (heads + 2) * d}, 1);
  const Tensor weight = make_input({2, heads, length, d}, 2);
  const auto run = [&](bool copies) {
    const std::vector<Tensor> parts = x.split_with_sizes({heads * d, d, d}, 2);
    const auto apart = [&](std::size_t i, std::int64_t count) {
      const Tensor part = parts[i].view({2, length, count, d}).transpose(1, 2);
      return copies ? part.contiguous() : part;
    };
    const Tensor y = scaled_dot_product_attention(apart(0, heads), apart(1, 1), apart(2, 1));
    return autograd::grad({(y * weight).sum()}, {x})[0];
  };
  EXPECT_TRUE(equal(run(false), run(true)));
}

// Gradients of parts that lie beside each other become the gradient of the whole without a copy; others are put
// together.
TEST(AttentionLayout, OneMissingPartIsZero) {
  const Tensor x = make_leaf({2, 5, 3 * 6}, 1);
  const std::vector<Tensor> parts = x.split(6, 2);
  const auto apart = [&](int i) { return parts[static_cast<std::size_t>(i)].view({2, 5, 2, 3}).transpose(1, 2); };
  scaled_dot_product_attention(apart(0), apart(1), apart(1)).sum().backward();
  EXPECT_TRUE((x.grad().narrow(2, 12, 6) == 0.0).all().item<bool>());
  EXPECT_FALSE((x.grad().narrow(2, 6, 6) == 0.0).any().item<bool>());
}

TEST(AttentionErrors, NameTheProblem) {
  const Tensor q = make_input({2, 3, 4}), k = make_input({2, 5, 4}), v = make_input({2, 5, 6});
  const auto attention = [&](const Tensor& a, const Tensor& b, const Tensor& c, const AttentionOptions& options = {}) {
    return error_of([&] { scaled_dot_product_attention(a, b, c, options); });
  };
  const std::pair<std::string, const char*> cases[] = {
      {attention(q, {}, v), "query, key or value is undefined"},
      {attention(q, make_input({2, 5, 3}), v), "expected query [..., L, E], key [..., S, E] and value [..., S, Ev]"},
      {attention(q, k, make_input({2, 4, 6})), "found [2, 3, 4], [2, 5, 4] and [2, 4, 6]"},
      {attention(q, make_input({3, 5, 4}), v), "scaled_dot_product_attention"},
      {attention(q, k, cast_values(v, kFloat32)), "of one dtype on one device"},
      {attention(q, k, v, {.attn_mask = ones({3, 5}), .is_causal = true}), "exclude each other"},
      {attention(q, k, v, {.attn_mask = ones({4, 5})}), "broadcasts to [2, 3, 5], found [4, 5]"},
      {attention(q, k, v, {.attn_mask = zeros({3, 5}, {.dtype = kInt64})}), "found int64"},
      {attention(q, k, v, {.dropout_p = 1.0}), "dropout_p in [0, 1), found 1"},
      {attention(q, make_input({3, 5, 4}), make_input({3, 5, 4}), {.enable_gqa = true}), "enable_gqa: expected"},
      {error_of([&] {
         packed_attention(make_input({2, 3, 10}), 2, 2);
       }),
       "expected a width that 2 + 2 * 2 heads divide"},
      {error_of([&] {
         packed_attention(make_input({3, 12}), 2);
       }),
       "[N, T, (heads + 2 * kv_heads) * D]"},
  };
  for (const auto& [message, part] : cases) EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ScaledDotProductAttention, AQueryWithoutAKeyGivesZeroWhateverWantsAGradient) {
  for (const bool learned : {false, true}) {
    const Tensor q = make_input({3, 4}), k = make_input({3, 4}), v = make_input({3, 4}),
                 mask = zeros({3, 3}, {.dtype = q.dtype()});
    mask[0].fill_(-INFINITY);
    for (const Tensor& x : {q, k, v}) x.set_requires_grad(true);
    mask.set_requires_grad(learned);
    const Tensor out = scaled_dot_product_attention(q, k, v, {.attn_mask = mask});
    EXPECT_EQ(out[0].abs().sum().item<double>(), 0.0);
    out.sum().backward();
    EXPECT_EQ(q.grad()[0].abs().sum().item<double>(), 0.0);
    for (const Tensor& x : {q, k, v}) EXPECT_TRUE(isfinite(x.grad()).all().item<bool>());
    if (learned) {
      EXPECT_TRUE(isfinite(mask.grad()).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
