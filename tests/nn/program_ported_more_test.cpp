// The rest of the programs that no tutorial has; see scripts/golden_ported_more.py.

#include <functional>
#include <numbers>

#include "lockstep/autograd/backward.h"
#include "programs.h"

namespace lockstep::testing {
namespace {

constexpr double kPi = std::numbers::pi;

class MorePortedPrograms : public Programs {
 protected:
  static Program program(const std::string& name) { return {name, GetParam(), "ported"}; }
};
INSTANTIATE_TEST_SUITE_P(Programs, MorePortedPrograms, ::testing::Values(kFloat64, kFloat32),
                         [](const auto& info) { return std::string(name(info.param)); });

struct MixtureDensity : nn::ModuleOf<MixtureDensity> {
  nn::Linear body{this, "body", 2, 8}, share{this, "share", 8, 3}, mean{this, "mean", 8, 3}, scale{this, "scale", 8, 3};

  Tensor forward(const Tensor& x, const Tensor& y) {
    const Tensor h = tanh(body(x)), m = mean(h), s = softplus(scale(h)) + 1e-3;
    const Tensor log_prob = -0.5 * square((y.unsqueeze(1) - m) / s) - s.log() - 0.5 * std::log(2 * kPi);
    return -logsumexp(log_softmax(share(h), -1) + log_prob, -1).mean();
  }
};

TEST_P(MorePortedPrograms, MixtureDensity) {
  const Program p = program("mixture_density");
  MixtureDensity net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02});
  p.expect_losses(optimizer, [&] { return net(p["x"], p["y"]); });
}

struct Quantiles : nn::Module {
  nn::Linear fc1{this, "fc1", 4, 8}, fc2{this, "fc2", 8, 2 * 5};
  Tensor forward(Tensor x) override { return fc2(mish(fc1(x))).view({-1, 2, 5}); }
};

TEST_P(MorePortedPrograms, QuantileRegressionDqn) {
  const Program p = program("quantile_dqn");
  Quantiles net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] {
    const Tensor taken = net(p["x"]).gather(1, p["action"].view({-1, 1, 1}).expand({-1, 1, 5})).squeeze(1);
    Tensor target;
    {
      const NoGradGuard no_grad;
      const Tensor best = net(p["next"]), choice = best.mean(2).argmax(1);
      target = p["reward"].unsqueeze(1) + 0.9 * (1 - p["done"]).unsqueeze(1) * best.index({arange(6), choice});
    }
    const Tensor tau = (arange(5, {.dtype = GetParam()}) + 0.5) / 5;
    const Tensor diff = target.unsqueeze(1) - taken.unsqueeze(2);
    const Tensor huber = huber_loss(taken.unsqueeze(2).expand({-1, -1, 5}), target.unsqueeze(1).expand({-1, 5, -1}),
                                    1.0, Reduction::none);
    return (abs(tau.view({1, 5, 1}) - (diff.detach() < 0).to(GetParam())) * huber).mean(2).sum(1).mean();
  });
}

struct Pointer : nn::ModuleOf<Pointer> {
  nn::GRU encoder{this, "encoder", 2, 6, {.batch_first = true}};
  nn::GRUCell decoder{this, "decoder", 2, 6};
  nn::Linear key{this, "key", 6, 6, {.bias = false}}, query{this, "query", 6, 6, {.bias = false}};
  nn::Linear v{this, "v", 6, 1, {.bias = false}};

  Tensor forward(const Tensor& x, const Tensor& order) {
    const auto [memory, last] = encoder(x);
    Tensor h = last[0], point = zeros_like(x.select(1, 0)), total = zeros({}, x.options());
    Tensor taken = zeros({x.size(0), x.size(1)}, kBool);
    for (std::int64_t t = 0; t < order.size(1); ++t) {
      h = decoder(point, h);
      const Tensor scores = v(tanh(key(memory) + query(h).unsqueeze(1))).squeeze(2);
      const Tensor log_prob = log_softmax(scores.masked_fill(taken, -std::numeric_limits<float>::infinity()), 1);
      const Tensor choice = order.slice(1, t, t + 1);
      total = total - log_prob.gather(1, choice).mean();
      taken = taken.scatter(1, choice, true);
      point = take_along_dim(x, choice.unsqueeze(2), 1).squeeze(1);
    }
    return total;
  }
};

TEST_P(MorePortedPrograms, PointerNetwork) {
  const Program p = program("pointer");
  Pointer net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02});
  p.expect_losses(optimizer, [&] { return net(p["x"], p["order"]); });
}

struct SetTransformer : nn::Module {
  nn::Linear up{this, "up", 3, 8}, q{this, "q", 8, 8}, k{this, "k", 8, 8}, v{this, "v", 8, 8}, o{this, "o", 8, 8};
  nn::Parameter seed{this, "seed", zeros({1, 2, 8})};
  nn::LayerNorm norm{this, "norm", {8}};
  nn::Linear out{this, "out", 16, 1};

  Tensor mab(const Tensor& x, const Tensor& y) {
    const auto split = [](const Tensor& t) { return cat(t.split(4, 2), 0); };
    const Tensor queries = q(x), keys = split(k(y)), values = split(v(y));
    const Tensor a = softmax(split(queries).bmm(keys.transpose(1, 2)) / std::sqrt(8.0), 2);
    const Tensor h = queries + cat(a.bmm(values).split(queries.size(0), 0), 2);
    return norm(h + relu(o(h)));
  }
  Tensor forward(Tensor x) override {
    Tensor z = up(x);
    z = mab(z, z);
    return out(mab(seed.repeat({x.size(0), 1, 1}), z).flatten(1)).squeeze(1);
  }
};

TEST_P(MorePortedPrograms, SetTransformer) {
  const Program p = program("set_transformer");
  SetTransformer net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return l1_loss(net(p["x"]), p["y"]); });
}

struct FourierField : nn::ModuleOf<FourierField> {
  nn::Parameter frequencies{this, "frequencies", zeros({2, 5})};
  nn::Linear fc1{this, "fc1", 10, 8}, fc2{this, "fc2", 8, 2};

  std::pair<Tensor, Tensor> forward(const Tensor& places) {
    const Tensor angle = matmul(2 * kPi * places, frequencies);
    const Tensor h = asinh(fc1(hstack({angle.sin(), angle.cos()})));
    const std::vector<Tensor> parts = fc2(h).unbind(1);
    return {atan2(parts[1], parts[0]), hypot(parts[0], parts[1])};
  }
};

TEST_P(MorePortedPrograms, FourierFeatures) {
  const Program p = program("fourier_field");
  FourierField net;
  p.start(net);
  EXPECT_TRUE(allclose(cartesian_prod({linspace(-1, 1, 4), linspace(0, 1, 3)}).to(GetParam()), p["places"], 1e-6));
  optim::Adam optimizer(net.parameters(), {.lr = 0.005});
  p.expect_losses(optimizer, [&] {
    const auto [phase, size] = net(p["places"]);
    const Tensor wrapped = remainder(phase - p["phase"] + kPi, 2 * kPi) - kPi;
    return wrapped.square().mean() + logaddexp(size - p["size"], p["size"] - size).mean();
  });
}

struct Quantiser : nn::Module {
  nn::Linear encode{this, "encode", 6, 8}, decode{this, "decode", 8, 6};
  nn::Buffer book{this, "book", zeros({2, 3, 4})};

  Tensor forward(Tensor x) override {
    const Tensor z = encode(x).view({-1, 2, 4}).transpose(0, 1);
    const Tensor code = cdist(z.detach(), book).argmin(2), at = code.unsqueeze(2).expand({-1, -1, 4});
    const Tensor q = book.gather(1, at);
    {
      const NoGradGuard no_grad;
      const Tensor fresh = scatter_reduce(zeros_like(book), 1, at, z, "mean", false);
      std::vector<Tensor> counts;
      for (const Tensor& c : code.unbind(0)) counts.push_back(bincount(c, {}, 3));
      book.copy_(where(stack(counts).unsqueeze(2) > 0, lerp(book, fresh, 0.5), book));
    }
    const Tensor straight = z + (q - z).detach();
    const Tensor y = decode(straight.transpose(0, 1).flatten(1));
    return mse_loss(y, x) + 0.25 * mse_loss(z, q.detach());
  }
};

TEST_P(MorePortedPrograms, ProductQuantisation) {
  const Program p = program("quantiser");
  Quantiser net;
  p.start(net);
  net.book.copy_(p["book"]);
  optim::SGD optimizer(net.parameters(), {.lr = 0.2});
  p.expect_losses(optimizer, [&] { return net(p["x"]); });
}

struct Video : nn::Module {
  nn::Conv3d conv1{this, "conv1", 1, 4, 3, {.padding = 1}};
  nn::BatchNorm3d norm{this, "norm", 4};
  nn::Conv3d conv2{this, "conv2", 4, 6, {1, 3, 3}, {.stride = {1, 2, 2}, .groups = 2}};
  nn::ConvTranspose1d up{this, "up", 6, 4, 3, {.stride = 2, .padding = 1, .output_padding = 1}};
  nn::Linear out{this, "out", 4, 3};

  Tensor forward(Tensor x) override {
    x = max_pool3d(relu(norm(conv1(x))), {1, 2, 2});
    x = hardswish(conv2(x)).mean({3, 4});
    return out(up(x).transpose(1, 2)).log_softmax(-1);
  }
};

TEST_P(MorePortedPrograms, VideoToWords) {
  const Program p = program("video");
  Video net;
  p.start(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.5});
  nn::CTCLoss criterion;
  p.expect_losses(optimizer, [&] {
    const Tensor log_probs = net(p["x"]).transpose(0, 1);
    return criterion(log_probs, p["words"], tensor<std::int64_t>({10, 10}), tensor<std::int64_t>({2, 2}));
  });
}

struct Ranker : nn::ModuleOf<Ranker> {
  nn::Bilinear score{this, "score", 3, 2, 1};
  nn::Linear kind{this, "kind", 3, 3};

  Tensor forward(const Tensor& items, const Tensor& user, const Tensor& shares) {
    const Tensor s = score(items, user.unsqueeze(1).expand({-1, items.size(1), -1}).contiguous()).squeeze(2);
    const Tensor ranking = (logcumsumexp(s.flip(1), 1).flip(1) - s).sum(1).mean();
    const Tensor a = softplus(kind(items.mean(1))) + 0.1, total = a.sum(1);
    const Tensor log_prob = ((a - 1) * shares.log()).sum(1) + lgamma(a.sum(1)) - lgamma(a).sum(1);
    const Tensor entropy =
        lgamma(a).sum(1) - lgamma(total) + (total - 3) * digamma(total) - ((a - 1) * digamma(a)).sum(1);
    return ranking - log_prob.mean() - 0.01 * entropy.mean();
  }
};

TEST_P(MorePortedPrograms, RankingAndDirichlet) {
  const Program p = program("ranker");
  Ranker net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02});
  p.expect_losses(optimizer, [&] { return net(p["items"], p["user"], p["shares"]); });
}

struct Surface : nn::ModuleOf<Surface> {
  nn::Linear fc1{this, "fc1", 2, 8}, fc2{this, "fc2", 8, 1};

  Tensor forward(const Tensor& x, const Tensor& y) {
    const Tensor xy = stack(meshgrid({x, y}, "xy"), -1);
    const Tensor points = cat({xy, fc2(sin(fc1(xy)))}, -1);
    const Tensor a = diff(points, 1, 0).slice(1, 0, -1), b = diff(points, 1, 1).slice(0, 0, -1);
    return normalize(cross(b, a), 2.0, -1);
  }
};

TEST_P(MorePortedPrograms, NormalsOfASurface) {
  const Program p = program("surface");
  Surface net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02});
  p.expect_losses(optimizer, [&] {
    const Tensor n = net(p["x"], p["y"]);
    const Tensor away = (1 - cosine_similarity(n, p["normals"], -1)).masked_select(p["mask"]);
    const Tensor worst = kthvalue(away, 2).values + quantile(away, 0.75);
    return away.mean() + 0.1 * worst + 0.01 * cummax(n, 0).values.mean();
  });
}

struct Critic : nn::Module {
  nn::Linear fc1{this, "fc1", 3, 8}, fc2{this, "fc2", 8, 8}, fc3{this, "fc3", 8, 1};
  Tensor forward(Tensor x) override { return fc3(tanh(fc2(softplus(fc1(x))))); }
};

/// Ten steps of the critic, whose slopes at x have the lengths size(net, x).
void train_critic(const std::function<Tensor(Critic&, const Tensor&)>& size, double tolerance) {
  const Program p("wgan_gp", kFloat64, "ported");
  Critic net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(
      optimizer,
      [&] {
        const Tensor x = (p["share"] * p["real"] + (1 - p["share"]) * p["fake"]).requires_grad_();
        return net(p["fake"]).mean() - net(p["real"]).mean() + 10 * (size(net, x) - 1).square().mean();
      },
      tolerance);
}

// The slope along its own direction, by a central difference, which is a function of the weights; docs/porting.md.
TEST(MorePortedProgramsDouble, CriticWithGradientPenalty) {
  train_critic(
      [](Critic& net, const Tensor& x) {
        const Tensor slope = grad({net(x).sum()}, {x})[0], along = normalize(slope), from = x.detach();
        const double eps = 1e-4;
        return (net(from + eps * along) - net(from - eps * along)) / (2 * eps);
      },
      1e-6);
}

// The same by gradients that are functions.
TEST(MorePortedProgramsDouble, CriticWithAGraphOfGradients) {
  train_critic(
      [](Critic& net, const Tensor& x) { return grad({net(x).sum()}, {x}, {}, {.create_graph = true})[0].norm(2, 1); },
      1e-9);
}

}  // namespace
}  // namespace lockstep::testing
