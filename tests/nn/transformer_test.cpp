#include "lockstep/nn/transformer.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// Equal for both, and exactly 0 apart where nothing but the way to say it differs.
TEST(AttentionMasks, SayTheSameInSeveralWays) {
  nn::MultiheadAttention attention(8, 2);
  const Tensor x = make_input({3, 5, 8}, 1, kFloat32), memory = make_input({3, 5, 8}, 2, kFloat32);
  const Tensor later = triu(ones({5, 5}, {.dtype = kBool}), 1);
  const Tensor padding = tensor({false, false, true, false, true}).view({1, 5}).expand({3, 5}).contiguous();
  for (const Tensor& to : {x, memory}) {
    const Tensor causal = attention(x, to, to, {.is_causal = true});
    for (const nn::AttentionMasks& same :
         {nn::AttentionMasks{.attn_mask = later}, nn::AttentionMasks{.attn_mask = later.expand({6, 5, 5})},
          nn::AttentionMasks{.attn_mask = nn::Transformer::generate_square_subsequent_mask(5)}})
      expect_close(attention(x, to, to, same), causal, 1e-6, 1e-6);
    const Tensor both = attention(x, to, to, {.attn_mask = logical_or(later, padding[0])});
    expect_close(attention(x, to, to, {.key_padding_mask = padding, .is_causal = true}), both, 1e-6, 1e-6);
    expect_close(attention(x, to, to, {.attn_mask = later, .key_padding_mask = padding}), both, 1e-6, 1e-6);
    expect_close(
        attention(x, to, to,
                  {.attn_mask = nn::Transformer::generate_square_subsequent_mask(5), .key_padding_mask = padding}),
        both, 1e-6, 1e-6);
  }
}

TEST(AttentionMasks, OfOtherShapesAreNamed) {
  nn::MultiheadAttention attention(8, 2);
  const Tensor x = make_input({3, 5, 8}, 1, kFloat32), y = make_input({3, 4, 8}, 1, kFloat32);
  const auto message = [&](const nn::AttentionMasks& masks) { return error_of([&] { attention(x, y, y, masks); }); };
  EXPECT_NE(message({.attn_mask = zeros({4, 5})}).find("attn_mask of sizes [5, 4] or [6, 5, 4], found [4, 5]"),
            std::string::npos);
  EXPECT_NE(message({.key_padding_mask = zeros({3, 5}, {.dtype = kBool})}).find("[3, 4], found bool [3, 5]"),
            std::string::npos);
  EXPECT_NE(message({.key_padding_mask = zeros({3, 4})}).find("found float32 [3, 4]"), std::string::npos);
  EXPECT_NE(error_of([&] { attention(x, y[0], y[0]); }).find("[N, length, 8], or all of [length, 8], found [4, 8]"),
            std::string::npos);
}

TEST(TransformerEncoderLayer, WithTheNormsFirstIsABlock) {
  nn::TransformerBlock block(8, 2, {.feedforward = 20, .dropout = 0.0, .is_causal = false});
  nn::TransformerEncoderLayer layer(
      8, 2, {.dim_feedforward = 20, .dropout = 0.0, .activation = nn::TransformerActivation::gelu, .norm_first = true});
  const auto from = block.named_parameters(), to = layer.named_parameters();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].name, to[i].name);
    nn::replace_value(to[i].tensor, from[i].tensor.detach().clone());
  }
  const Tensor x = make_input({3, 5, 8}, 1, kFloat32);
  expect_close(layer(x), block(x), 0, 0);
}

TEST(Transformer, TakesOneSequenceWithoutABatch) {
  nn::MultiheadAttention attention(8, 2, {.is_causal = true});
  const Tensor x = make_input({5, 8}, 1, kFloat32), y = make_input({3, 8}, 2, kFloat32);
  const Tensor xs = x.unsqueeze(0), ys = y.unsqueeze(0);
  EXPECT_TRUE(attention(x).equal(attention(xs).squeeze(0)));
  EXPECT_TRUE(attention(x, y, y).equal(attention(xs, ys, ys).squeeze(0)));
  const Tensor padding = tensor<bool>({false, false, true, false, true}), of_batch = padding.unsqueeze(0);
  EXPECT_TRUE(attention(x, x, x, {.key_padding_mask = padding})
                  .equal(attention(xs, xs, xs, {.key_padding_mask = of_batch}).squeeze(0)));
  nn::Transformer transformer(8, 2, {.encoder_layers = 1, .decoder_layers = 1, .layer = {.dim_feedforward = 16}});
  transformer.eval();
  EXPECT_TRUE(transformer(x, y).equal(transformer(xs, ys).squeeze(0)));

  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(error_of([&] {
             attention(make_input({5, 6}, 1, kFloat32));
           }),
           "[nn::MultiheadAttention] expected x of sizes [N, T, 8] or [T, 8], found [5, 6]");
  contains(error_of([&] { attention(x, ys, ys); }), "or all of [length, 8], found [1, 3, 8]");
}

TEST(Transformer, HasPyTorchsNames) {
  nn::Transformer transformer(8, 2, {.encoder_layers = 1, .decoder_layers = 2, .layer = {.dim_feedforward = 12}});
  std::vector<std::string> names;
  for (const nn::NamedTensor& p : transformer.named_parameters()) names.push_back(p.name);
  EXPECT_EQ(names.size(), 12u + 2 + 2 * 18u + 2);
  for (const char* name :
       {"encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.norm2.bias", "encoder.norm.weight",
        "decoder.layers.1.multihead_attn.out_proj.bias", "decoder.layers.0.norm3.weight", "decoder.norm.bias"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  EXPECT_NE(error_of([] { nn::TransformerEncoder(8, 2, -1); }).find("at least 0, found -1"), std::string::npos);
}

// What stands in padded places of the source changes nothing.
TEST(Transformer, DoesNotLookAtPadding) {
  nn::Transformer transformer(8, 2, {.encoder_layers = 2, .decoder_layers = 1, .layer = {.dim_feedforward = 12}});
  transformer.eval();
  const Tensor src = make_input({2, 5, 8}, 1, kFloat32), tgt = make_input({2, 4, 8}, 2, kFloat32);
  Tensor padding = zeros({2, 5}, {.dtype = kBool});
  padding.slice(1, 3, 5).fill_(1);
  Tensor other = src.clone();
  other.slice(1, 3, 5).fill_(100);
  const nn::TransformerMasks masks{
      .src = {.key_padding_mask = padding}, .tgt = {.is_causal = true}, .memory = {.key_padding_mask = padding}};
  expect_close(transformer(src, tgt, masks), transformer(other, tgt, masks), 0, 0);
  // Nor does a position look at later ones.
  const Tensor whole = transformer(src, tgt, masks);
  expect_close(transformer(src, tgt.slice(1, 0, 2), masks), whole.slice(1, 0, 2), 1e-6, 1e-6);
}

}  // namespace
}  // namespace lockstep::testing
