#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

OpCase attention(const char* name, const Shape& query, const Shape& key, const Shape& value,
                 AttentionOptions options = {}, const Shape& mask = {}, bool bool_mask = false) {
  return {name,
          [=] {
            TensorList in{make_leaf(query, 1), make_leaf(key, 2), make_leaf(value, 3)};
            if (!mask.empty()) in.push_back(make_input(mask, 4));
            return in;
          },
          [=](const TensorList& in) {
            AttentionOptions with = options;
            if (in.size() > 3) with.attn_mask = bool_mask ? in[3] > -0.3 : in[3];
            manual_seed(1);
            return TensorList{scaled_dot_product_attention(in[0], in[1], in[2], with)};
          },
          4.0};
}

OpCase rms(const char* name, const Shape& sizes, bool weight) {
  return {name,
          [=] {
            return TensorList{make_leaf(sizes, 1, kFloat64, -1.0, 4.0), make_leaf({sizes.back()}, 2)};
          },
          [=](const TensorList& in) {
            return TensorList{rms_norm(in[0], {sizes.back()}, weight ? in[1] : Tensor(), 1e-3)};
          },
          4.0};
}

const OpCase kCases[] = {
    attention("sdpa", {2, 3, 5, 4}, {2, 3, 7, 4}, {2, 3, 7, 6}),
    attention("sdpa_causal", {1, 2, 40, 8}, {1, 2, 40, 8}, {1, 2, 40, 8}, {.is_causal = true}),
    attention("sdpa_long_rows", {1, 1, 3, 300}, {1, 1, 5, 300}, {1, 1, 5, 290}),
    attention("sdpa_many_keys", {1, 2, 4, 8}, {1, 2, 600, 8}, {1, 2, 600, 8}),
    attention("sdpa_many_queries", {1, 2, 600, 4}, {1, 2, 5, 4}, {1, 2, 5, 4}),
    attention("sdpa_mask", {2, 2, 5, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {}, {5, 6}),
    attention("sdpa_bool_mask", {2, 2, 5, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {}, {2, 1, 5, 6}, true),
    attention("sdpa_grouped", {2, 6, 5, 4}, {2, 2, 7, 4}, {2, 2, 7, 3}, {.enable_gqa = true}),
    attention("sdpa_dropout", {2, 3, 9, 4}, {2, 3, 11, 4}, {2, 3, 11, 4}, {.dropout_p = 0.4}),
    attention("sdpa_dropout_of_heads", {2, 3, 9, 4}, {2, 3, 11, 4}, {2, 3, 11, 4},
              {.dropout_p = 0.4, .first_head = 2, .all_heads = 6}),
    // More than a tile of 64 queries and keys, and parts of one.
    attention("sdpa_tiles", {1, 2, 130, 64}, {1, 1, 70, 64}, {1, 1, 70, 48}, {.enable_gqa = true}),
    attention("sdpa_tiles_causal", {1, 1, 100, 16}, {1, 1, 140, 16}, {1, 1, 140, 16}, {.is_causal = true}),
    attention("sdpa_tiles_dropout", {1, 1, 70, 8}, {1, 1, 70, 8}, {1, 1, 70, 8}, {.dropout_p = 0.4, .is_causal = true}),
    attention("sdpa_tiles_mask", {1, 2, 70, 8}, {1, 2, 66, 8}, {1, 2, 66, 8}, {}, {70, 66}),
    attention("sdpa_width_100", {1, 1, 9, 100}, {1, 1, 40, 100}, {1, 1, 40, 72}, {.is_causal = true}),
    {"packed_attention",
     [] {
       return TensorList{make_leaf({2, 9, 24}, 1)};
     },
     [](const TensorList& in) { return TensorList{packed_attention(in[0], 4, 2, {.is_causal = true})}; }, 4.0},
    rms("rms_norm", {9, 37}, true),
    rms("rms_norm_plain", {9, 37}, false),
    rms("rms_norm_of_a_block", {5, 700}, true),
    {"tril",
     [] {
       return TensorList{make_leaf({2, 9, 7}, 1)};
     },
     [](const TensorList& in) {
       return TensorList{tril(in[0]), triu(in[0], -2), tril(in[0], 3)};
     }},
    {"topk",
     [] {
       return TensorList{make_leaf({5, 700}, 1), make_input({6, 9}, 2, kInt64, 0.0, 3.0)};
     },
     [](const TensorList& in) {
       return TensorList{topk(in[0], 7).values, topk(in[0], 2, 0, false).values, topk(in[1], 5).indices};
     }},
    {"multinomial",
     [] {
       return TensorList{make_input({5, 700}, 1, kFloat64, 0.0, 1.0)};
     },
     [](const TensorList& in) {
       manual_seed(1);
       return TensorList{multinomial(in[0], 3), multinomial(in[0], 9, true)};
     },
     1.0, true, false},
    {"rotary",
     [] {
       return TensorList{make_leaf({2, 3, 7, 6}, 1), make_input({7, 3}, 2)};
     },
     [](const TensorList& in) { return TensorList{rotary(in[0], cos(in[1]), sin(in[1]))}; }},
};

class CudaAttention : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaAttention, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaAttention, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
