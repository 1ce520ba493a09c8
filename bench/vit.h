#pragma once

#include <lockstep/lockstep.h>

namespace lockstep::bench {

/// A vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", 2021) for images of 3 x 32 x 32: patches
/// of 4 x 4, 6 layers of 192 in 3 heads, the mean of all positions classified.
struct Vit : nn::Module {
  static constexpr std::int64_t kWidth = 192, kHeads = 3, kLayers = 6, kPatches = 64;

  Vit() {
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks.add(kWidth, kHeads, nn::TransformerBlockOptions{.dropout = 0.0, .is_causal = false});
    nn::init::normal_(positions, 0.0, 0.02);
  }

  Tensor forward(Tensor x) override {
    x = patches(x).flatten(2).transpose(1, 2) + positions;
    for (nn::TransformerBlock& block : blocks) x = block(x);
    return head(norm(x).mean({1}));
  }

  nn::Conv2d patches{this, "patches", 3, kWidth, 4, {.stride = 4}};
  nn::Parameter positions{this, "positions", empty({kPatches, kWidth})};
  nn::ModuleList<nn::TransformerBlock> blocks{this, "blocks"};
  nn::LayerNorm norm{this, "norm", kWidth};
  nn::Linear head{this, "head", kWidth, 10};
};

}  // namespace lockstep::bench
