#pragma once

#include <lockstep/lockstep.h>

#include <cmath>

namespace lockstep::bench {

/// A layer of GPT-2 with the norms first, as a port from PyTorch reads.
struct GptBlock : nn::Module {
  GptBlock(std::int64_t width, std::int64_t heads)
      : ln_1(this, "ln_1", width),
        c_attn(this, "c_attn", width, 3 * width),
        c_proj(this, "c_proj", width, width),
        ln_2(this, "ln_2", width),
        c_fc(this, "c_fc", width, 4 * width),
        mlp_proj(this, "mlp_proj", 4 * width, width),
        heads(heads) {}

  Tensor forward(Tensor x) override {
    const std::int64_t n = x.size(0), t = x.size(1), c = x.size(2);
    const std::vector<Tensor> parts = c_attn(ln_1(x)).split(c, 2);
    const auto by_head = [&](const Tensor& part) { return part.view({n, t, heads, c / heads}).transpose(1, 2); };
    Tensor y =
        scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {.is_causal = true});
    y = y.transpose(1, 2).reshape({n, t, c});
    x = x + c_proj(y);
    return x + mlp_proj(gelu(c_fc(ln_2(x)), GeluMode::tanh));
  }

  nn::LayerNorm ln_1;
  nn::Linear c_attn, c_proj;
  nn::LayerNorm ln_2;
  nn::Linear c_fc, mlp_proj;
  std::int64_t heads;
};

/// A character-level GPT of 6 layers of 384 in 6 heads, on tokens [N, T]; logits [N * T, 65], with the embedding's
/// weight as output projection.
struct Gpt : nn::Module {
  static constexpr std::int64_t kVocabulary = 65, kWidth = 384, kHeads = 6, kLayers = 6;

  explicit Gpt(std::int64_t context) : wpe(this, "wpe", context, kWidth) {
    for (std::int64_t i = 0; i < kLayers; ++i) h.add(kWidth, kHeads);
    nn::init::normal_(wte.weight, 0.0, 0.02);
    nn::init::normal_(wpe.weight, 0.0, 0.02);
  }

  Tensor forward(Tensor tokens) override {
    Tensor x = wte(tokens) + wpe.weight.narrow(0, 0, tokens.size(1));
    for (GptBlock& block : h) x = block(x);
    return linear(ln_f(x), wte.weight).flatten(0, 1);
  }

  nn::Embedding wte{this, "wte", kVocabulary, kWidth};
  nn::Embedding wpe;
  nn::ModuleList<GptBlock> h{this, "h"};
  nn::LayerNorm ln_f{this, "ln_f", kWidth};
};

}  // namespace lockstep::bench
