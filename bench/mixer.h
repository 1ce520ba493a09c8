#pragma once

#include <lockstep/lockstep.h>

namespace lockstep::bench {

/// Two perceptrons, over the positions and over the channels.
struct MixerBlock : nn::Module {
  MixerBlock(std::int64_t positions, std::int64_t width)
      : norm1(this, "norm1", width),
        token1(this, "token1", positions, width / 2),
        token2(this, "token2", width / 2, positions),
        norm2(this, "norm2", width),
        channel1(this, "channel1", width, 4 * width),
        channel2(this, "channel2", 4 * width, width) {}

  Tensor forward(Tensor x) override {
    x = x + token2(gelu(token1(norm1(x).transpose(1, 2)))).transpose(1, 2);
    return x + channel2(gelu(channel1(norm2(x))));
  }

  nn::LayerNorm norm1;
  nn::Linear token1, token2;
  nn::LayerNorm norm2;
  nn::Linear channel1, channel2;
};

/// An MLP-Mixer (Tolstikhin et al., 2021) for images of 3 x 32 x 32: patches of 4 x 4, 4 layers of 192.
struct Mixer : nn::Module {
  static constexpr std::int64_t kWidth = 192, kLayers = 4, kPatches = 64;

  Mixer() {
    for (std::int64_t i = 0; i < kLayers; ++i) blocks.add(kPatches, kWidth);
  }

  Tensor forward(Tensor x) override {
    x = patches(x).flatten(2).transpose(1, 2);
    for (MixerBlock& block : blocks) x = block(x);
    return head(norm(x).mean({1}));
  }

  nn::Conv2d patches{this, "patches", 3, kWidth, 4, {.stride = 4}};
  nn::ModuleList<MixerBlock> blocks{this, "blocks"};
  nn::LayerNorm norm{this, "norm", kWidth};
  nn::Linear head{this, "head", kWidth, 10};
};

}  // namespace lockstep::bench
