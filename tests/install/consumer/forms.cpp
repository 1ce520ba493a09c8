// The forms in which people who know PyTorch type things. Compiled with all warnings as errors, run once.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ls = lockstep;
using ls::Tensor;

// --- modules -----------------------------------------------------------------------------------------------------

struct Block : ls::nn::Module {
  Block(ls::nn::Module* parent, std::string_view name, int width)
      : Module(parent, name), fc{this, "fc", width, width}, norm{this, "norm", width} {}
  ls::nn::Linear fc;
  ls::nn::BatchNorm1d norm;
  Tensor forward(Tensor x) override { return relu(norm(fc(x))); }
};

struct Net : ls::nn::Module {
  ls::nn::Linear in{this, "in", 4, 8};
  Block block{this, "block", 8};
  ls::nn::Dropout dropout{this, "dropout", 0.1};
  ls::nn::Linear out{this, "out", 8, 3};
  Tensor forward(Tensor x) override { return out(dropout(block(in(x)))); }
};

// Two inputs, and two results.
struct TwoTowers : ls::nn::ModuleOf<TwoTowers> {
  ls::nn::Linear left{this, "left", 4, 2}, right{this, "right", 3, 2};
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) { return {left(a), right(b)}; }
};

void modules() {
  Net net;
  net.train();
  Tensor x = ls::randn({5, 4});
  Tensor y = net(x);
  net.eval();
  y = net.forward(x);
  TwoTowers towers;
  const auto [a, b] = towers(x, ls::ones({5, 3}));
  (a * b).sum().backward();
  for (auto& [name, parameter] : net.named_parameters())
    if (name.ends_with("bias")) parameter.set_requires_grad(false);
  for (auto& p : net.parameters()) p.requires_grad_();
  net.to(ls::kFloat64);
  net.to(ls::kFloat32);
  net.to(ls::Device("cpu"));
  net.zero_grad();
  std::cerr << net.num_parameters() << ' ' << net.type_name() << '\n';
}

// --- tensors -----------------------------------------------------------------------------------------------------

void tensors() {
  Tensor x = ls::randn({2, 3}), y = ls::ones({2, 3}), m = x > 0.0;
  const int n = 3;
  Tensor shapes[] = {ls::zeros(3), ls::zeros({n, 2}), ls::empty(n), ls::full({2}, 1.5), ls::arange(5)};
  for (const Tensor& each : shapes) std::cerr << each.sizes() << ' ' << each.dim() << ' ' << each.numel() << '\n';
  std::cerr << x << x.shape() << x.size(0) << x.size(-1) << '\n';

  Tensor results[] = {x.sum(0),
                      x.sum(),
                      x.mean(0),
                      x.mean({0, 1}),
                      x.max(1),
                      x.argmax(),
                      x.argmax(1),
                      m.all(),
                      m.any(0),
                      x.eq(y),
                      x.ne(1),
                      x.lt(0.5),
                      x.mm(y.t()),
                      x.matmul(y.t()),
                      x.sub(y),
                      x.add(y, 2),
                      x.mul(2),
                      x.div(y),
                      x.norm(),
                      x.pow(2),
                      x.abs().sqrt(),
                      x.exp().log(),
                      x.clamp(0, 1),
                      x.relu().sigmoid(),
                      x.tanh(),
                      x.view({3, 2}),
                      x.view(-1),
                      x.reshape({6}),
                      x.flatten(),
                      x.t(),
                      x.permute({1, 0}),
                      x.transpose(0, 1),
                      x.unsqueeze(0),
                      x.unsqueeze(0).squeeze(0),
                      x.expand({2, 3}),
                      x.softmax(1),
                      x.log_softmax(-1),
                      x[0],
                      x[1][2],
                      x.select(0, 1),
                      x.narrow(1, 0, 2),
                      x.slice(1, 0, 3, 2),
                      x.clone(),
                      x.detach(),
                      x.contiguous(),
                      x.cpu(),
                      x.to(ls::kFloat64),
                      x.isnan(),
                      x.isfinite(),
                      x.logsumexp(1),
                      x.var(),
                      x.min(),
                      x.maximum(y),
                      x.minimum(y)};
  for (const Tensor& each : results) (void)each.numel();

  Tensor more[] = {ls::cat({x, y}),
                   cat(std::vector<Tensor>{x, y}, 1),
                   ls::stack({x, y}),
                   where(m, x, y),
                   matmul(x, y.t()),
                   relu(x),
                   softmax(x, 1),
                   x + y,
                   x - 1,
                   2 * x,
                   x / 2.0,
                   -x,
                   1 - x,
                   x > y,
                   x == y,
                   x <= 1,
                   maximum(x, y),
                   sum(x),
                   mean(x, 0)};
  for (const Tensor& each : more) (void)each.numel();

  x.add_(y).mul_(2).sub_(1).div_(3);
  x.zero_().fill_(1);
  x.copy_(y);
  for (const Tensor& each : x.split(1)) (void)each;
  for (const Tensor& each : x.chunk(2, 1)) (void)each;

  Tensor w = ls::randn({3}).requires_grad_();
  {
    ls::AnomalyMode mode;
    (w * w).sum().backward();
  }
  const float* data = w.data_ptr<float>();
  const double sum = w.grad().sum().item() + w.grad()[0].item<float>() + static_cast<double>(data[0]);
  const int index = w.argmax().item<int>();
  const bool finite = std::isfinite(sum) && w.isfinite().all().item<bool>();
  std::cerr << index << finite << '\n';
  {
    ls::NoGradGuard no_grad;
    w -= 0.1 * w.grad();
  }
  const std::vector<float> values = w.to_vector<float>();
  const Tensor labels = ls::tensor<std::int64_t>({0, 2});
  const Tensor loss = cross_entropy(x, labels);
  std::cerr << values.size() << ' ' << loss.item() << '\n';
}

// --- training ----------------------------------------------------------------------------------------------------

struct Pairs : ls::data::MapDataset {
  std::int64_t size() const override { return 12; }
  ls::data::Batch get(std::int64_t index) const override {
    return {.x = ls::full({4}, static_cast<double>(index)),
            .y = ls::full({}, static_cast<double>(index % 3), {.dtype = ls::kInt64}),
            .tensors = {{"weight", ls::ones({1})}}};
  }
};

ls::distributed::NoSync accumulate(ls::distributed::DistributedDataParallel& ddp) {
  return ddp.no_sync();
}

void training() {
  auto job = ls::distributed::init();
  Net net;
  ls::distributed::DistributedDataParallel ddp(net, job);
  ls::optim::SGD sgd(net.in.parameters(), {.lr = 0.1, .momentum = 0.9});
  ls::optim::AdamW adam({{{net.out.weight}, {.lr = 1e-3, .weight_decay = 0.1}}, {{net.out.bias}, {.lr = 1e-3}}});
  adam.add_param_group({net.block.parameters(), {.lr = 1e-4}});
  for (auto& group : adam.param_groups()) group.options.lr *= 0.5;
  ls::optim::LRScheduler scheduler(sgd, ls::optim::StepLR{.lr = 0.1, .step_size = 10});

  ls::data::DataLoader loader(std::make_shared<Pairs>(), {.batch_size = 6, .seed = 1, .num_workers = 0});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader.epoch(epoch)) {
      Tensor loss = ddp.step(batch, [&](const ls::data::Batch& part) {
        return (cross_entropy(net(part.x), part.y) * part["weight"].mean());
      });
      ls::optim::clip_grad_norm_(net.parameters(), 1.0);
      sgd.step();
      adam.step();
      std::cerr << loss.item() << ' ' << sgd.lr() << ' ' << adam.lr(1) << '\n';
    }
    scheduler.step();
  }
  for (auto& batch : loader.epoch(2)) {
    sgd.zero_grad();
    adam.zero_grad();
    {
      std::optional<ls::distributed::NoSync> no_sync(accumulate(ddp));
      cross_entropy(ddp(batch.x), batch.y).backward();
    }
    cross_entropy(ddp(batch.x), batch.y).backward();
    sgd.step();
    adam.step();
  }
  std::cerr << ls::nn::weights_sha256(net) << ' ' << ls::nn::state_sha256(net) << '\n';
}

// --- names of a program's own, with all of ours in sight ---------------------------------------------------------

void train(ls::nn::Module& net, int epoch) {
  net.train();
  std::cerr << epoch << '\n';
}
void test(ls::nn::Module& net) {
  net.eval();
}
double accuracy = 0.0;
struct Model {};

void names() {
  using namespace lockstep;
  Net net;
  for (int epoch = 0; epoch < 2; ++epoch) {
    train(net, epoch);
    test(net);
    accuracy += net(rand({5, 4})).argmax(1).eq(0).to(kFloat32).mean().item<double>();
  }
  const Model model;
  (void)model;
}

void communication() {
  using namespace lockstep;
  namespace dist = lockstep::distributed;
  const dist::StorePtr store = dist::make_prefix_store("mine", dist::make_hash_store());
  store->set("key", "value");
  const dist::Job job = dist::init({.rank = 0, .world_size = 1, .store = store});
  dist::ProcessGroup& group = *job.process_group();
  const Tensor x = ones({2});
  std::vector<Tensor> blocks{zeros({2})};
  group.all_gather(blocks, x)->wait();
  group.gather(blocks, x)->wait();
  group.gather({zeros({2})}, x, 0)->wait();
  group.scatter(x, blocks)->wait();
  group.reduce_scatter(x, blocks)->wait();
  group.all_to_all({zeros({2})}, {x})->wait();
  group.all_reduce(ones({2}, {.dtype = kInt64}), dist::ReduceOp::bor)->wait();
  Net net;
  const auto adamw = dist::zero_redundancy<optim::AdamW>(net.parameters(), job.process_group(), {.lr = 1e-3});
  const auto sgd = dist::zero_redundancy<optim::SGD>(net.parameters(), group.new_group({0}));
  dist::AveragedWeights average(net, 0.99, {.use_buffers = true});
}

int main() {
  ls::manual_seed(1);
  modules();
  tensors();
  training();
  communication();
  names();
  std::puts("every form compiles and runs");
}
