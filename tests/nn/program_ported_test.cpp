// Programs that no tutorial has, as their PyTorch originals are written; see scripts/golden_ported.py.

#include "programs.h"

namespace lockstep::testing {
namespace {

class PortedPrograms : public Programs {
 protected:
  static Program program(const std::string& name) { return {name, GetParam(), "ported"}; }
};
INSTANTIATE_TEST_SUITE_P(Programs, PortedPrograms, ::testing::Values(kFloat64, kFloat32),
                         [](const auto& info) { return std::string(name(info.param)); });

struct MessagePassing : nn::ModuleOf<MessagePassing> {
  nn::Linear message{this, "message", 7, 6}, update{this, "update", 4 + 18, 6}, out{this, "out", 6, 2};

  Tensor forward(const Tensor& x, const Tensor& edge, const Tensor& source, const Tensor& target, const Tensor& graph) {
    const Tensor m = elu(message(cat({x.index_select(0, source), edge}, 1)));
    const Tensor at = target.unsqueeze(1).expand_as(m), none = zeros({x.size(0), 6}, x.options());
    std::vector<Tensor> joined{x};
    for (const char* kind : {"amax", "mean", "sum"}) joined.push_back(scatter_reduce(none, 0, at, m, kind, false));
    const Tensor h = tanh(update(cat(joined, 1)));
    return out(index_reduce(zeros({2, 6}, x.options()), 0, graph, h, "mean", false));
  }
};

TEST_P(PortedPrograms, MessagePassing) {
  const Program p = program("message_passing");
  MessagePassing net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02});
  p.expect_losses(optimizer,
                  [&] { return cross_entropy(net(p["x"], p["edge"], p["source"], p["target"], p["graph"]), p["y"]); });
}

struct AttentionUNet : nn::Module {
  nn::Conv2d first{this, "first", 2, 4, 3, {.padding = 1}};
  nn::GroupNorm norm1{this, "norm1", 2, 4};
  nn::Conv2d down{this, "down", 4, 8, 3, {.stride = 2, .padding = 1}};
  nn::GroupNorm norm2{this, "norm2", 4, 8};
  nn::Conv2d qkv{this, "qkv", 8, 24, 1}, merge{this, "merge", 8, 8, 1};
  nn::ConvTranspose2d up{this, "up", 8, 4, 2, {.stride = 2}};
  nn::Conv2d last{this, "last", 8, 2, 1};

  Tensor forward(Tensor x) override {
    const Tensor a = silu(norm1(first(x)));
    Tensor b = silu(norm2(down(a)));
    const std::int64_t n = b.size(0), c = b.size(1), h = b.size(2), w = b.size(3);
    const std::vector<Tensor> parts = qkv(b).view({n, 3, 2, c / 2, h * w}).transpose(-1, -2).unbind(1);
    const Tensor mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    b = b + merge(mixed.transpose(-1, -2).reshape({n, c, h, w}));
    return last(cat({a, up(b)}, 1));
  }
};

TEST_P(PortedPrograms, UNetWithGroupNormAndAttention) {
  const Program p = program("attention_unet");
  AttentionUNet net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return mse_loss(net(p["x"]), p["y"]); });
}

struct Perceiver : nn::ModuleOf<Perceiver> {
  nn::Parameter latents{this, "latents", zeros({3, 8})};
  nn::LayerNorm norm_in{this, "norm_in", {5}}, norm{this, "norm", {8}};
  nn::Linear q{this, "q", 8, 8, {.bias = false}}, kv{this, "kv", 5, 16}, mlp{this, "mlp", 8, 8}, out{this, "out", 8, 4};

  Tensor forward(const Tensor& x, const Tensor& mask) {
    const std::int64_t n = x.size(0);
    Tensor z = latents.expand({n, -1, -1});
    for (int i = 0; i < 2; ++i) {
      const std::vector<Tensor> kv_parts = kv(norm_in(x)).chunk(2, -1);
      const auto split = [](const Tensor& t) { return t.unflatten(-1, {2, 4}).transpose(1, 2); };
      const Tensor bias = zeros({n, 1, 1, x.size(1)}, x.options())
                              .masked_fill(mask.unsqueeze(1).unsqueeze(1), -std::numeric_limits<double>::infinity());
      const Tensor mixed =
          scaled_dot_product_attention(split(q(norm(z))), split(kv_parts[0]), split(kv_parts[1]), {.attn_mask = bias});
      z = z + mixed.transpose(1, 2).flatten(2);
      z = z + gelu(mlp(norm(z)), GeluMode::tanh);
    }
    return out(z.amax(1));
  }
};

TEST_P(PortedPrograms, Perceiver) {
  const Program p = program("perceiver");
  Perceiver net;
  p.start(net);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return cross_entropy(net(p["x"], p["mask"]), p["y"]); });
}

struct HyperNetwork : nn::ModuleOf<HyperNetwork> {
  nn::Embedding code{this, "code", 3, 4};
  nn::Linear to_kernel{this, "to_kernel", 4, 3 * 2 * 9}, to_weight{this, "to_weight", 4, 5 * 3};

  Tensor forward(const Tensor& x, const Tensor& task) {
    const std::int64_t n = x.size(0);
    const Tensor z = code(task), kernel = to_kernel(z).view({n * 3, 2, 3, 3});
    const Tensor y = conv2d(x.reshape({1, n * 2, 6, 6}), kernel, {}, {.padding = 1, .groups = n}).view({n, 3, 36});
    return einsum("noi,ni->no", {to_weight(z).view({n, 5, 3}), leaky_relu(y, 0.1).mean(2)});
  }
};

TEST_P(PortedPrograms, HyperNetwork) {
  const Program p = program("hypernetwork");
  HyperNetwork net;
  p.start(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  p.expect_losses(optimizer, [&] { return nll_loss(log_softmax(net(p["x"], p["task"]), 1), p["y"]); });
}

struct NeuralODE : nn::Module {
  nn::Linear fc1{this, "fc1", 3, 8}, fc2{this, "fc2", 8, 2};

  Tensor slope(double t, const Tensor& y) { return fc2(tanh(fc1(cat({y, full_like(y.slice(1, 0, 1), t)}, 1)))); }
  Tensor forward(Tensor y) override {
    std::vector<Tensor> path{y};
    const double h = 0.25;
    for (int i = 0; i < 4; ++i) {
      const double t = i * h;
      const Tensor k1 = slope(t, y);
      const Tensor k2 = slope(t + h / 2, y + h / 2 * k1);
      const Tensor k3 = slope(t + h / 2, add(y, k2, h / 2));
      const Tensor k4 = slope(t + h, y + h * k3);
      y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4);
      path.push_back(y);
    }
    return stack(path);
  }
};

TEST_P(PortedPrograms, NeuralODEByRungeKutta) {
  const Program p = program("neural_ode");
  NeuralODE net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return (net(p["y0"]) - p["path"]).abs().mean(); });
}

struct Tagger : nn::ModuleOf<Tagger> {
  nn::Embedding words{this, "words", 12, 5};
  nn::LSTM rnn{this, "rnn", 5, 4, {.batch_first = true, .bidirectional = true}};
  nn::Linear scores{this, "scores", 8, 4};
  nn::Parameter moves{this, "moves", zeros({4, 4})}, first{this, "first", zeros({4})};

  Tensor forward(const Tensor& text, const Tensor& tags, const Tensor& mask) {
    using indexing::Slice;
    const auto [hidden, state] = rnn(words(text));
    const Tensor e = scores(hidden);
    Tensor alpha = first + e.index({Slice(), 0});
    Tensor path = first.index({tags.select(1, 0)}) + e.select(1, 0).gather(1, tags.slice(1, 0, 1)).squeeze(1);
    for (std::int64_t t = 1; t < text.size(1); ++t) {
      const Tensor scored = logsumexp(alpha.unsqueeze(2) + moves, {1}) + e.select(1, t);
      alpha = where(mask.select(1, t).unsqueeze(1), scored, alpha);
      const Tensor step = moves.index({tags.select(1, t - 1), tags.select(1, t)}) +
                          e.select(1, t).gather(1, tags.slice(1, t, t + 1)).squeeze(1);
      path = path + step * mask.select(1, t);
    }
    return (logsumexp(alpha, 1) - path).mean();
  }
};

TEST_P(PortedPrograms, LstmWithConditionalRandomField) {
  const Program p = program("tagger");
  Tagger net;
  p.start(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.2});
  p.expect_losses(optimizer, [&] { return net(p["words"], p["tags"], p["mask"]); });
}

struct Equilibrium : nn::Module {
  nn::Linear inner{this, "inner", 6, 6, {.bias = false}}, inject{this, "inject", 3, 6}, out{this, "out", 6, 2};

  Tensor forward(Tensor x) override {
    const Tensor injected = inject(x);
    Tensor z = zeros_like(injected);
    {
      const NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) {
        const Tensor before = z;
        z = tanh(0.5 * inner(z) + injected);
        if ((z - before).norm().item<double>() < 1e-3 * z.norm().item<double>()) break;
      }
    }
    return out(tanh(0.5 * inner(z) + injected));
  }
};

TEST_P(PortedPrograms, DeepEquilibrium) {
  const Program p = program("equilibrium");
  Equilibrium net;
  p.start(net);
  optim::RMSprop optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return smooth_l1_loss(net(p["x"]), p["y"], 0.5); });
}

struct Capsules : nn::Module {
  nn::Conv2d conv{this, "conv", 1, 8, 3, {.stride = 2}};
  nn::Parameter votes{this, "votes", zeros({3, 18, 5, 4})};

  static Tensor squash(const Tensor& s) {
    const Tensor square = s.square().sum(-1, true);
    return s * (square / (1 + square) / (square + 1e-8).sqrt());
  }
  Tensor forward(Tensor x) override {
    const std::int64_t n = x.size(0);
    const Tensor u = squash(conv(x).view({n, 2, 4, 9}).permute({0, 1, 3, 2}).reshape({n, 18, 4}));
    const Tensor all = einsum("jiab,nib->nija", {votes, u});
    Tensor logits = zeros({n, 18, 3}, x.options()), v;
    for (int turn = 0; turn < 3; ++turn) {
      v = squash((logits.softmax(2).unsqueeze(-1) * all).sum(1));
      if (turn < 2) logits = logits + (all * v.unsqueeze(1)).sum(-1).detach();
    }
    return v.norm(2, -1);
  }
};

TEST_P(PortedPrograms, CapsulesWithDynamicRouting) {
  const Program p = program("capsules");
  Capsules net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  const Tensor wanted = one_hot(p["y"], 3).to(GetParam());
  p.expect_losses(optimizer, [&] {
    const Tensor length = net(p["x"]);
    return (wanted * relu(0.9 - length).pow(2) + 0.5 * (1 - wanted) * relu(length - 0.1).pow(2)).sum(1).mean();
  });
}

struct DeepFM : nn::ModuleOf<DeepFM> {
  nn::EmbeddingBag linear{this, "linear", 20, 1, {.mode = BagMode::sum}};
  nn::Embedding factors{this, "factors", 20, 4};
  nn::EmbeddingBag bag{this, "bag", 20, 4, {.mode = BagMode::max, .padding_idx = 0}};
  nn::Linear deep1{this, "deep1", 12 + 4, 8}, deep2{this, "deep2", 8, 1};

  Tensor forward(const Tensor& fields, const Tensor& weights, const Tensor& history, const Tensor& offsets) {
    const Tensor v = factors(fields) * weights.unsqueeze(2);
    const Tensor pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1);
    const Tensor deep = deep2(relu(deep1(cat({v.flatten(1), bag(history, offsets)}, 1)))).squeeze(1);
    return linear(fields, Tensor(), weights).squeeze(1) + pairs + deep;
  }
};

TEST_P(PortedPrograms, DeepFactorisationMachine) {
  const Program p = program("deep_fm");
  DeepFM net;
  p.start(net);
  optim::Adagrad optimizer(net.parameters(), {.lr = 0.05});
  p.expect_losses(optimizer, [&] {
    return binary_cross_entropy_with_logits(net(p["fields"], p["weights"], p["history"], p["offsets"]), p["y"]);
  });
}

}  // namespace
}  // namespace lockstep::testing
