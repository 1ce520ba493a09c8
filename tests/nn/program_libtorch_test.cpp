// Programs in the forms that libtorch's users type, and those forms one by one; see scripts/golden_libtorch.py.

#include <cmath>
#include <numbers>

#include "lockstep/core/error.h"
#include "programs.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

namespace F = nn::functional;
using indexing::None;
using indexing::Slice;

class LibtorchPrograms : public Programs {
 protected:
  static Program program(const std::string& name) { return {name, GetParam(), "libtorch"}; }
};
INSTANTIATE_TEST_SUITE_P(Programs, LibtorchPrograms, ::testing::Values(kFloat64, kFloat32),
                         [](const auto& info) { return std::string(name(info.param)); });

struct Flow : nn::Module {
  nn::ModuleList<nn::Sequential> scales{this, "scales"}, shifts{this, "shifts"};
  Flow() {
    for (int i = 0; i < 4; ++i) {
      scales.add().add<nn::Linear>(2, 6).add<nn::LeakyReLU>(0.01).add<nn::Linear>(6, 2).add<nn::Tanh>();
      shifts.add().add<nn::Linear>(2, 6).add<nn::LeakyReLU>(0.01).add<nn::Linear>(6, 2);
    }
  }
  Tensor forward(Tensor x) override {
    Tensor total = x.new_zeros({x.size(0)});
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const Tensor mask = (i % 2 ? tensor({1.f, 0.f}) : tensor({0.f, 1.f})).type_as(x);
      const Tensor kept = x * mask, s = scales[i](kept) * (1 - mask);
      x = kept + (1 - mask) * (x * exp(s) + shifts[i](kept));
      total += s.sum(-1);
    }
    return -0.5 * (x.pow(2) + std::log(2 * std::numbers::pi)).sum(1) + total;
  }
};

TEST_P(LibtorchPrograms, Flow) {
  const Program p = program("flow");
  Flow net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] { return -net(p["x"]).mean(); });
}

struct WaveNet : nn::Module {
  nn::Embedding embed{this, "embed", 8, 4};
  nn::ModuleList<nn::Conv1d> filter{this, "filter"}, gate{this, "gate"}, residual{this, "residual"}, skip{this, "skip"};
  nn::Conv1d out{this, "out", 6, 8, 1};
  WaveNet() {
    for (const std::int64_t dilation : {1, 2, 4}) {
      filter.add(4, 4, 2, nn::Conv1dOptions{.dilation = dilation});
      gate.add(4, 4, 2, nn::Conv1dOptions{.dilation = dilation});
      residual.add(4, 4, 1);
      skip.add(4, 6, 1);
    }
  }
  Tensor forward(Tensor wave) override {
    Tensor x = embed(wave).transpose(1, 2), skips;
    for (std::size_t i = 0; i < filter.size(); ++i) {
      const Tensor padded = F::pad(x, F::PadFuncOptions({std::int64_t{1} << i, 0}).mode(kConstant).value(0.0));
      const Tensor h = tanh(filter[i](padded)).mul(sigmoid(gate[i](padded))), s = skip[i](h);
      skips = skips.defined() ? skips + s : s;
      x = residual[i](h) + x;
    }
    return out(relu(skips));
  }
};

TEST_P(LibtorchPrograms, WaveNet) {
  const Program p = program("wavenet");
  WaveNet net;
  p.start(net);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  // The codes are those of float64: some lie near a whole number.
  const Tensor wave = p["wave"].toType(kF64), mu = tensor(7.0, kF64);
  const Tensor signal = sign(wave) * log1p(mu * min(abs(wave), ones_like(wave))) / log1p(mu);
  const Tensor coded = ((signal + 1) / 2 * mu + 0.5).to(kI64);
  p.expect_losses(optimizer, [&] {
    return F::cross_entropy(net(coded.slice(1, 0, -1)), coded.slice(1, 1),
                            F::CrossEntropyFuncOptions().reduction(kSum));
  });
}

struct Dueling : nn::Module {
  nn::Linear fc1{this, "fc1", 4, 8}, advantage{this, "advantage", 8, 3}, worth{this, "worth", 8, 1};
  Tensor forward(Tensor x) override {
    const Tensor h = relu(fc1(x)), a = advantage(h);
    return worth(h) + a - a.mean(1, true);
  }
};

TEST_P(LibtorchPrograms, DuelingDqn) {
  const Program p = program("dueling_dqn");
  Dueling net;
  p.start(net);
  optim::RMSprop optimizer(net.parameters(), {.lr = 0.01});
  const Tensor action = p["action"];
  const auto values = action.accessor<std::int64_t, 1>();
  std::vector<std::int64_t> actions;
  for (std::int64_t i = 0; i < values.size(0); ++i) actions.push_back(values[i]);
  p.expect_losses([&] {
    Tensor target;
    {
      const NoGradGuard no_grad;
      const Tensor best = net(p["next"]);
      target = p["reward"] + 0.99 * best.gather(1, best.argmax(1, true)).squeeze(1) * (1 - p["done"]);
    }
    const Tensor taken = net(p["x"]).gather(1, tensor(actions, kLong).unsqueeze(1)).squeeze(1);
    const Tensor loss = smooth_l1_loss(taken, target);
    optimizer.zero_grad();
    loss.backward();
    for (const auto& each : net.named_parameters()) each.value().grad().data().clamp_(-0.05, 0.05);
    optimizer.step();
    return loss.item<double>();
  });
}

struct ActorCritic : nn::ModuleOf<ActorCritic> {
  nn::Linear a1{this, "a1", 3, 6}, a2{this, "a2", 6, 2}, c1{this, "c1", 3, 6}, c2{this, "c2", 6, 1};
  Tensor log_std = register_parameter("log_std", full({2}, -0.5, kFloat32));
  std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {tanh(a2(tanh(a1(x)))), c2(tanh(c1(x)))}; }
};

TEST_P(LibtorchPrograms, ProximalPolicy) {
  const Program p = program("ppo");
  ActorCritic net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  p.expect_losses(optimizer, [&] {
    const auto [mu, value] = net.forward(p["x"]);
    const Tensor log_std = net.log_std, var = (log_std + log_std).exp();
    const Tensor log_prob =
        -((p["action"] - mu) * (p["action"] - mu)) / (2 * var) - log_std - std::log(std::sqrt(2 * std::numbers::pi));
    const Tensor ratio = (log_prob - p["log_prob"]).exp();
    const Tensor actor = -min(ratio * p["advantage"], clamp(ratio, 1. - 0.2, 1. + 0.2) * p["advantage"]).mean();
    const Tensor entropy = 0.5 + 0.5 * std::log(2 * std::numbers::pi) + log_std;
    return 0.5 * (p["returns"] - value).pow(2).mean() + actor - 0.01 * entropy.mean();
  });
}

struct SpectralCritic : nn::ModuleOf<SpectralCritic> {
  nn::Conv2d conv{this, "conv", 1, 4, 3};
  nn::Linear fc{this, "fc", 36, 1};
  Tensor forward(const Tensor& x, const Tensor& u) {
    const Tensor w = conv.weight.view({4, -1});
    Tensor v;
    {
      const NoGradGuard no_grad;
      v = F::normalize(w.t().mv(u), F::NormalizeFuncOptions().dim(0));
      u.copy_(F::normalize(w.mv(v), F::NormalizeFuncOptions().dim(0).eps(1e-12)));
    }
    const Tensor h = conv2d(x, conv.weight / u.clone().dot(w.mv(v)), conv.bias);
    return fc(leaky_relu(max_pool2d(h, 2), 0.2).flatten(1));
  }
};

TEST_P(LibtorchPrograms, SpectralCritic) {
  const Program p = program("spectral_critic");
  SpectralCritic net;
  p.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01, .beta1 = 0.0, .beta2 = 0.9});
  const Tensor u = p["u"];
  p.expect_losses(optimizer, [&] {
    const Tensor real = net(p["real"], u), fake = net(p["fake"], u);  // one after the other: both change u
    return relu(1 - real).mean() + relu(1 + fake).mean();
  });
}

struct PackedText : nn::ModuleOf<PackedText> {
  nn::Embedding embed{this, "embed", 12, 4, {.padding_idx = 0}};
  nn::LSTM lstm{this, "lstm", 4, 3, {.num_layers = 2, .batch_first = true, .bidirectional = true}};
  nn::GRU gru{this, "gru", 6, 3, {.batch_first = true, .bidirectional = true}};
  nn::Linear fc{this, "fc", 6, 3};
  Tensor forward(const Tensor& text, const Tensor& lengths, const Tensor& h0) {
    const auto packed = nn::utils::rnn::pack_padded_sequence(embed(text), lengths, true, false);
    const auto [out, state] = lstm.forward_with_packed_input(packed);
    const auto [more, last] = gru.forward_with_packed_input(out, h0);
    const auto [padded, counts] = nn::utils::rnn::pad_packed_sequence(more, true, 0.5);
    EXPECT_TRUE(counts.equal(lengths));
    return fc(cat({state.h[2], state.c[3]}, 1)) + fc(cat({last[0], last[1]}, 1)) + padded.mean({1, 2}).unsqueeze(1);
  }
};

TEST_P(LibtorchPrograms, PackedText) {
  const Program p = program("packed_text");
  PackedText net;
  p.start(net);
  optim::Adagrad optimizer(net.parameters(), {.lr = 0.1});
  p.expect_losses(optimizer, [&] { return cross_entropy(net(p["text"], p["lengths"], p["h0"]), p["y"]); });
}

struct Image : nn::ModuleOf<Image> {
  nn::Parameter image{this, "image", zeros({1, 3, 6, 6})};
  static Tensor gram(const Tensor& x) {
    const Tensor f = x.flatten(2);
    return f.bmm(f.transpose(1, 2)).div(static_cast<double>(f[0].numel()));
  }
  Tensor forward(const Tensor& content, const Tensor& style, const Tensor& weight) {
    const auto features = [&](const Tensor& x) { return relu(conv2d(x, weight, {}, {.padding = 1})); };
    const Tensor f = features(image);
    return F::mse_loss(f, features(content)) +
           10 * F::mse_loss(gram(f), gram(features(style)), F::MSELossFuncOptions().reduction(kMean));
  }
};

TEST_P(LibtorchPrograms, StyleByLbfgs) {
  const Program p = program("style_lbfgs");
  Image net;
  p.start(net);
  optim::LBFGS optimizer(net.parameters(), {.lr = 0.5, .max_iter = 3, .history_size = 4});
  p.expect_losses([&] {
    return optimizer
        .step([&] {
          optimizer.zero_grad();
          const Tensor loss = net(p["content"], p["style"], p["weight"]);
          loss.backward();
          return loss;
        })
        .item<double>();
  });
}

// --- the forms one by one -----------------------------------------------------------------------------------------

TEST(LibtorchForms, OptionsOfADtypeOrDevice) {
  EXPECT_EQ(arange(3, kFloat32).dtype(), kFloat32);
  EXPECT_EQ(arange(0, 4, kF64).to_vector<double>(), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(arange(0, 4, 2, kDouble).numel(), 2);
  EXPECT_EQ(full({2}, 7, kLong).dtype(), kInt64);
  EXPECT_EQ(full({2}, 7, dtype(kLong)).dtype(), kInt64);
  EXPECT_EQ(rand({2}, Device(kCPU)).dtype(), kFloat32);
  EXPECT_EQ(zeros({2}, kCPU).numel(), 2);
  EXPECT_EQ(eye(2, kF64).dtype(), kFloat64);
  EXPECT_EQ(randint(5, {3}, dtype(kI32)).dtype(), kInt32);
  EXPECT_EQ(randint(0, 5, {3}, kLong).dtype(), kInt64);
  EXPECT_EQ(randint(5, {3}, kInt).dtype(), kInt32);
  EXPECT_TRUE(tensor({{1, 2}, {3, 4}}, kLong).equal(arange(1, 5, kLong).view({2, 2})));
  EXPECT_TRUE(tensor({{1, 2, 3}}, dtype(kF64)).equal(tensor({1, 2, 3}, kF64).view({1, 3})));
  EXPECT_THROW(tensor({{1, 300}}, kUInt8), Error);
  EXPECT_EQ(randperm(4, kInt).dtype(), kInt32);
  EXPECT_EQ(tensor(std::vector<int>{1, 2}, kLong).dtype(), kInt64);
  EXPECT_EQ(tensor(std::vector<int>{1, 2}, dtype(kF64)).dtype(), kFloat64);
  EXPECT_EQ(tensor(3, kF64).item<double>(), 3.0);
  float values[2] = {1.f, 2.f};
  EXPECT_EQ(from_blob(values, {2}, kFloat).sum().item<float>(), 3.f);
  EXPECT_EQ(cuda::is_available(), cuda::device_count() > 0);
}

TEST(LibtorchForms, MethodsAreTheFunctions) {
  const Tensor x = tensor({0.5f, -2.f, 3.f}), y = tensor({2.f, 1.f, -1.f});
  EXPECT_TRUE(x.atan2(y).equal(atan2(x, y)));
  EXPECT_TRUE(x.remainder(2).equal(remainder(x, 2)));
  EXPECT_TRUE(x.lerp(y, 0.25).equal(lerp(x, y, 0.25)));
  EXPECT_TRUE(x.where(x > 0, 0).equal(relu(x)));
  EXPECT_TRUE(max(x, y).equal(maximum(x, y)) && min(x, y).equal(minimum(x, y)));
  EXPECT_TRUE(clamp_min(x, 0).equal(relu(x)) && clamp_max(x, 1.0).equal(x.clamp_max(1.0)));
  EXPECT_TRUE(x.kthvalue(2).values.equal(x.median()));
  EXPECT_TRUE(x.diag().trace().allclose(x.sum()));
  EXPECT_TRUE(x.scatter_reduce(0, tensor({0, 0, 0}, kLong), y, "amax").equal(tensor({2.f, -2.f, 3.f})));
  EXPECT_TRUE(x.unfold(0, 2, 1).equal(windows(x, 0, 2, 1)));
  EXPECT_EQ(x.count_nonzero().item<int>(), 3);
  EXPECT_EQ(tensor({0.f, 1.f}).multinomial(1).item<int>(), 1);
  EXPECT_TRUE(x.logical_xor(zeros({3})).all().item<bool>());
  Tensor z = x.clone();
  z.index_fill_(0, tensor({1}, kLong), 4).clamp_max_(3.5).sqrt_();
  EXPECT_TRUE(z.allclose(sqrt(tensor({0.5f, 3.5f, 3.f}))));
  z.random_(5, 6);
  EXPECT_TRUE(z.equal(full({3}, 5)));
  const Tensor leaf = tensor({1.f, 4.f}).requires_grad_();
  Tensor root = leaf * 1;
  root.log_();
  root.sum().backward();
  EXPECT_TRUE(leaf.grad().equal(tensor({1.f, 0.25f})));
  leaf.data().fill_(9);
  EXPECT_EQ(leaf[1].item<float>(), 9.f);
  const Tensor means = tensor({100.f, -100.f});
  EXPECT_TRUE((normal(means, tensor({0.1f, 0.1f})) - means).abs().max().item<float>() < 5.f);
}

TEST(LibtorchForms, AccessorsReadAndWriteElements) {
  const Tensor x = arange(6, kFloat32).view({2, 3}).t();
  auto at = x.accessor<float, 2>();
  EXPECT_EQ(at.size(0), 3);
  EXPECT_EQ(at[2][1], 5.f);
  at[0][1] = 7.f;
  EXPECT_EQ(x[0][1].item<float>(), 7.f);
  const std::string error = error_of([&] { x.accessor<double, 2>(); });
  EXPECT_NE(error.find("[accessor] expected a float64 tensor with 2 dimensions on the CPU, found float32 [3, 2]"),
            std::string::npos)
      << error;
}

TEST(LibtorchForms, ParametersAreFoundByName) {
  struct Net : nn::Module {
    nn::Linear fc{this, "fc", 2, 3};
    Tensor frozen = register_parameter("frozen", ones({2}), false);
    Tensor seen = register_buffer("seen", zeros({1}));
  } net;
  const auto named = net.named_parameters();
  EXPECT_TRUE(named["fc.weight"].is_same(net.fc.weight));
  EXPECT_EQ(named.keys(), (std::vector<std::string>{"fc.weight", "fc.bias", "frozen"}));
  EXPECT_EQ(named.find("seen"), nullptr);
  EXPECT_TRUE(net.named_buffers().contains("seen"));
  EXPECT_FALSE(net.frozen.requires_grad());
  EXPECT_NE(error_of([&] { named["fc.w"]; }).find("no tensor named 'fc.w'"), std::string::npos);
  int linears = 0;
  net.apply([&](nn::Module& m) { linears += m.as<nn::Linear>() != nullptr; });
  EXPECT_EQ(linears, 1);
}

TEST(LibtorchForms, PackedSequencesNameWhatIsWrong) {
  using namespace nn::utils::rnn;
  const Tensor x = zeros({3, 2, 1});
  EXPECT_NE(error_of([&] {
              pack_padded_sequence(x, tensor({2, 3}, kLong));
            }).find("the lengths rise"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              pack_padded_sequence(x, tensor({4, 3}, kLong));
            }).find("at most the 3 steps of x, found 4"),
            std::string::npos);
  const PackedSequence packed = pack_sequence({arange(3, kFloat), arange(1, kFloat)});
  EXPECT_EQ(packed.data.to_vector<float>(), (std::vector<float>{0, 0, 1, 2}));
  EXPECT_EQ(packed.batch_sizes.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 1, 1}));
  EXPECT_NE(error_of([&] { pad_packed_sequence(packed, false, 0.0, 2); }).find("at least 3"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
