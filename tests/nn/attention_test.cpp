#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/transformer.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// Recorded by scripts/record_golden.py, transformer(): torch.nn.TransformerEncoderLayer and MultiheadAttention.
const GoldenFile& recorded() {
  return GoldenFile::open("transformer");
}

void take_weights(nn::Module& module, const std::string& test_case) {
  module.to(kFloat64);
  for (const nn::NamedTensor& p : module.named_parameters())
    copy_values(recorded().get(test_case, p.name), p.tensor.detach());
}

void expect_gradients(nn::Module& module, const std::string& test_case) {
  for (const nn::NamedTensor& p : module.named_parameters())
    expect_golden(p.tensor.grad(), recorded().get(test_case, "grad." + p.name), p.name, 1e-9);
}

TEST(GoldenTransformer, BlockEqualsPyTorch) {
  nn::TransformerBlock block(12, 3, {.feedforward = 20, .dropout = 0.0});
  take_weights(block, "block");
  const Tensor x = cast_values(recorded().get("block", "x"), kFloat64);
  x.set_requires_grad(true);
  const Tensor out = block(x);
  expect_golden(out.detach(), recorded().get("block", "out"), "out", 1e-9);
  out.square().sum().backward();
  expect_gradients(block, "block");
  expect_golden(x.grad(), recorded().get("block", "grad.x"), "x", 1e-9);
}

TEST(GoldenTransformer, CrossAttentionEqualsPyTorch) {
  nn::MultiheadAttention attention(12, 3);
  take_weights(attention, "cross");
  const auto input = [&](const char* name) { return cast_values(recorded().get("cross", name), kFloat64); };
  const Tensor mask = recorded().get("cross", "mask") != 1;
  const Tensor out = attention.forward(input("query"), input("key"), input("value"), {.attn_mask = mask});
  expect_golden(out.detach(), recorded().get("cross", "out"), "out", 1e-9);
  out.square().sum().backward();
  expect_gradients(attention, "cross");
}

TEST(MultiheadAttention, SelfAttentionIsTheGeneralOne) {
  nn::MultiheadAttention attention(8, 2, {.is_causal = true});
  const Tensor x = make_input({2, 5, 8}, 1, kFloat32);
  const Tensor mask = triu(ones({5, 5}, {.dtype = kBool}), 1), copy = x.clone();
  expect_close(attention(x), attention.forward(x, copy, copy, {.attn_mask = mask}), 1e-5, 1e-6);
  expect_close(attention(x), attention.forward(x, x, x, {.attn_mask = mask}), 1e-5, 1e-6);
  int calls = 0;
  attention.set_call_hook([&] { ++calls; });
  expect_close(attention(x), attention(x, x, x, {.attn_mask = mask}), 1e-5, 1e-6);
  EXPECT_EQ(calls, 2);
}

TEST(MultiheadAttention, DropsOnlyWhileTraining) {
  nn::MultiheadAttention attention(8, 2, {.dropout = 0.5});
  const Tensor x = make_input({2, 5, 8}, 1, kFloat32);
  EXPECT_NE(attention(x).to_vector<float>(), attention(x).to_vector<float>());
  attention.eval();
  EXPECT_EQ(attention(x).to_vector<float>(), attention(x).to_vector<float>());
}

TEST(MultiheadAttention, NamesAreThoseOfPyTorch) {
  nn::TransformerBlock block(8, 2);
  std::vector<std::string> names;
  for (const nn::NamedTensor& p : block.named_parameters()) names.push_back(p.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                                      "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                                      "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}));
}

TEST(MultiheadAttentionErrors, NameTheProblem) {
  EXPECT_NE(error_of([] { nn::MultiheadAttention(8, 3); }).find("a number of heads that divides the width 8, found 3"),
            std::string::npos);
}

TEST(RMSNorm, NormalisesRows) {
  nn::RMSNorm norm(4, {.eps = 0.0});
  const Tensor y = norm(make_input({3, 4}, 1, kFloat32));
  expect_close(y.square().mean({1}), ones({3}), 1e-5);
  EXPECT_EQ(norm.named_parameters().size(), 1u);
}

TEST(RotaryAngles, AreThoseOfThePositions) {
  const nn::RotaryAngles all = nn::rotary_angles(7, 6), rest = nn::rotary_angles(4, 6, 10000.0, 3);
  expect_close(rest.cosine, all.cosine.narrow(0, 3, 4), 0, 0);
  EXPECT_FLOAT_EQ(all.sine[5][1].item<float>(), std::sin(5 * std::pow(10000.0, -2.0 / 6)));
  EXPECT_NE(error_of([] { nn::rotary_angles(3, 5); }).find("even width"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
