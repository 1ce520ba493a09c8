// Programs over images and graphs, as their PyTorch originals are written; see scripts/golden_models.py.

#include "programs.h"

namespace lockstep::testing {
namespace {

class ImagePrograms : public Programs {};
INSTANTIATE_TEST_SUITE_P(Programs, ImagePrograms, ::testing::Values(kFloat64, kFloat32),
                         [](const auto& info) { return std::string(name(info.param)); });

struct Gan : nn::Module {
  nn::Sequential generator{this, "generator"}, discriminator{this, "discriminator"};

  Gan() {
    generator.add<nn::ConvTranspose2d>(6, 8, 4, nn::ConvTranspose2dOptions{.bias = false})
        .add<nn::BatchNorm2d>(8)
        .add<nn::ReLU>()
        .add<nn::ConvTranspose2d>(8, 1, 4, nn::ConvTranspose2dOptions{.stride = 2, .padding = 1, .bias = false})
        .add<nn::Tanh>();
    discriminator.add<nn::Conv2d>(1, 8, 4, nn::Conv2dOptions{.stride = 2, .padding = 1, .bias = false})
        .add<nn::LeakyReLU>(0.2)
        .add<nn::Conv2d>(8, 8, 3, nn::Conv2dOptions{.stride = 1, .padding = 1})
        .add<nn::BatchNorm2d>(8)
        .add<nn::LeakyReLU>(0.2)
        .add<nn::Conv2d>(8, 1, 4)
        .add<nn::Sigmoid>();
  }
};

TEST_P(ImagePrograms, Dcgan) {
  const Program program("dcgan", GetParam());
  Gan net;
  program.start(net);
  optim::Adam one(net.discriminator.parameters(), {.lr = 0.002, .beta1 = 0.5}),
      other(net.generator.parameters(), {.lr = 0.002, .beta1 = 0.5});
  const nn::BCELoss criterion;
  const Tensor real = ones({4}, {.dtype = GetParam()}), made = zeros_like(real);
  program.expect_losses([&] {
    one.zero_grad();
    const Tensor errors = criterion.forward(net.discriminator(program["real"]).view({-1}), real);
    errors.backward();
    const Tensor fake = net.generator(program["noise"]);
    const Tensor more = criterion.forward(net.discriminator(fake.detach()).view({-1}), made);
    more.backward();
    one.step();
    other.zero_grad();
    const Tensor fooled = criterion.forward(net.discriminator(fake).view({-1}), real);
    fooled.backward();
    other.step();
    return (errors + more + fooled).item();
  });
}

struct UNet : nn::Module {
  nn::Sequential down1{this, "down1"}, down2{this, "down2"}, bottom{this, "bottom"};
  nn::ConvTranspose2d up2{this, "up2", 8, 8, 2, {.stride = 2}};
  nn::Conv2d merge2{this, "merge2", 16, 4, 3, {.padding = 1}};
  nn::Conv2d merge1{this, "merge1", 8, 1, 3, {.padding = 1}};

  UNet() {
    const nn::Conv2dOptions same{.padding = 1};
    down1.add<nn::Conv2d>(2, 4, 3, same)
        .add<nn::InstanceNorm2d>(4, nn::InstanceNormOptions{.affine = true})
        .add<nn::ELU>();
    down2.add<nn::Conv2d>(4, 8, 3, same).add<nn::Hardswish>();
    bottom.add<nn::Conv2d>(8, 8, 3, same).add<nn::Mish>();
  }

  Tensor forward(Tensor x) override {
    const Tensor a = down1(x);
    Tensor b = down2(max_pool2d(a, 2));
    const Tensor c = bottom(avg_pool2d(b, 2));
    b = relu6(merge2(cat({up2(c), b}, 1)));
    b = interpolate(b, {.scale_factor = 2, .mode = InterpolateMode::bilinear});
    const Tensor framed = pad(cat({b, a}, 1), {1, 0, 0, 1}, PadMode::reflect);
    return merge1(framed.slice(2, 1, framed.size(2)).slice(3, 0, -1));
  }
};

TEST_P(ImagePrograms, UNet) {
  const Program program("unet", GetParam());
  UNet net;
  program.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.01});
  const Tensor x = program["x"], mask = program["mask"];
  program.expect_losses(optimizer, [&] {
    const Tensor logits = net(x), p = sigmoid(logits);
    const Tensor dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1);
    return binary_cross_entropy_with_logits(logits, mask) + dice;
  });
}

struct Vae : nn::ModuleOf<Vae> {
  nn::Linear fc1{this, "fc1", 12, 8}, mean{this, "mean", 8, 3}, logvar{this, "logvar", 8, 3};
  nn::Linear fc3{this, "fc3", 3, 8}, fc4{this, "fc4", 8, 12};

  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& noise) {
    const Tensor h = softplus(fc1(x)), m = mean(h), v = logvar(h);
    const Tensor z = m + noise * exp(0.5 * v);
    return {sigmoid(fc4(selu(fc3(z)))), m, v};
  }
};

TEST_P(ImagePrograms, Vae) {
  const Program program("vae", GetParam());
  Vae net;
  program.start(net);
  optim::Adagrad optimizer(net.parameters(), {.lr = 0.05});
  program.expect_losses(optimizer, [&] {
    const auto [y, m, v] = net(program["x"], program["noise"]);
    const Tensor divergence = -0.5 * (1 + v - m.pow(2) - v.exp()).sum();
    return binary_cross_entropy(y, program["x"], {}, Reduction::sum) + divergence;
  });
}

struct Gat : nn::ModuleOf<Gat> {
  nn::Linear project{this, "project", 4, 6, {.bias = false}}, attend{this, "attend", 12, 1}, out{this, "out", 6, 3};

  Tensor forward(const Tensor& x, const Tensor& source, const Tensor& target) {
    Tensor h = project(x);
    const Tensor ends = cat({h.index_select(0, source), h.index_select(0, target)}, 1);
    const Tensor score = leaky_relu(attend(ends).squeeze(1), 0.2);
    const Tensor weight = exp(score - score.max().detach());
    const Tensor total = zeros({x.size(0)}, options_of(x)).scatter_add(0, target, weight);
    const Tensor share = (weight / total.index_select(0, target)).unsqueeze(1);
    h = zeros_like(h).index_add(0, target, h.index_select(0, source) * share);
    return log_softmax(out(elu(h)), 1);
  }
};

TEST_P(ImagePrograms, GraphAttention) {
  const Program program("gat", GetParam());
  Gat net;
  program.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.02, .weight_decay = 5e-4});
  program.expect_losses(
      optimizer, [&] { return nll_loss(net(program["x"], program["source"], program["target"]), program["labels"]); });
}

struct SuperResolution : nn::Module {
  nn::Conv2d conv1{this, "conv1", 1, 6, 5, {.padding = 2}}, conv2{this, "conv2", 6, 4, 3, {.padding = 1}};
  nn::PixelShuffle shuffle{this, "shuffle", 2};

  SuperResolution() {
    nn::init::orthogonal_(conv1.weight, std::sqrt(2.0));
    nn::init::orthogonal_(conv2.weight);
  }
  Tensor forward(Tensor x) override { return shuffle(conv2(relu(conv1(x)))); }
};

TEST_P(ImagePrograms, SuperResolution) {
  const Program program("super_resolution", GetParam());
  SuperResolution net;
  const Tensor rows = net.conv1.weight.flatten(1).to(kFloat64);
  EXPECT_TRUE(allclose(rows.matmul(rows.t()), 2.0 * eye(6, 6, {.dtype = kFloat64}), 1e-5, 1e-5));
  program.start(net);
  optim::Adadelta optimizer(net.parameters(), {.lr = 1.0});
  program.expect_losses(optimizer, [&] { return smooth_l1_loss(net(program["x"]), program["y"], 0.5); });
}

}  // namespace
}  // namespace lockstep::testing
