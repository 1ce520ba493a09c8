// What a rank of a job holds of a GPT-2 while it is trained: its peak in a step, and what it keeps between steps.
//
//   for z in 0 1 2 3; do lockstep-run --nproc-per-node 2 -- sharding_memory --zero $z; done
//   ... --layers 12 --width 768 --vocabulary 50257: GPT-2 124M
//
// Rank 0 prints one row of a table, as the tensors' allocator counts, in bytes a parameter, beside the formula: 4 bytes
// each for a parameter, its gradient and Adam's two, of which ZeRO-1 divides the latter, ZeRO-2 gradients too and
// ZeRO-3 all by the number of ranks.

#include <fmt/core.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "bench/gpt.h"
#include "lockstep/core/allocator.h"

namespace {

using namespace lockstep;

struct Sizes {
  int zero = 3;
  std::int64_t layers = 6, width = 256, vocabulary = 2048, context = 64, batch = 1;
};

struct Model : nn::Module {
  explicit Model(const Sizes& sizes)
      : wte(this, "wte", sizes.vocabulary, sizes.width),
        wpe(this, "wpe", sizes.context, sizes.width),
        ln_f(this, "ln_f", sizes.width) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) h.add(sizes.width, sizes.width / 64);
  }
  Tensor forward(Tensor tokens) override {
    Tensor x = wte(tokens) + wpe.weight.narrow(0, 0, tokens.size(1));
    for (bench::GptBlock& block : h) x = block(x);
    return linear(ln_f(x), wte.weight).flatten(0, 1);
  }
  nn::Embedding wte, wpe;
  nn::ModuleList<bench::GptBlock> h{this, "h"};
  nn::LayerNorm ln_f;
};

Sizes parse(int argc, char** argv) {
  Sizes sizes;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::int64_t value = std::atoll(argv[i + 1]);
    if (name == "--zero") sizes.zero = static_cast<int>(value);
    if (name == "--layers") sizes.layers = value;
    if (name == "--width") sizes.width = value;
    if (name == "--vocabulary") sizes.vocabulary = value;
    if (name == "--context") sizes.context = value;
    if (name == "--batch") sizes.batch = value;
  }
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Sizes sizes = parse(argc, argv);
    const distributed::Job job = distributed::init();
    Allocator& memory = allocator(job.device().type);
    Model model(sizes);
    model.to(job.device());
    const auto parameters = static_cast<double>(model.num_parameters());
    TrainingStep step(model, {.job = &job, .zero = sizes.zero >= 2 ? sizes.zero : 0});
    std::unique_ptr<optim::Optimizer> optimizer =
        std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = 1e-4});
    if (sizes.zero > 0) optimizer = std::make_unique<distributed::ZeroRedundancyOptimizer>(std::move(optimizer), step);
    const auto train = [&] {
      const Tensor tokens = randint(0, sizes.vocabulary, {sizes.batch * job.world_size(), sizes.context + 1});
      const data::Batch batch{tokens.narrow(1, 0, sizes.context), tokens.narrow(1, 1, sizes.context)};
      step(batch, [](nn::Module& net, const data::Batch& part) {
        return cross_entropy(net.forward(part.x), part.y.flatten());
      });
      optimizer->clip_grad_norm_(1.0);
      optimizer->step();
    };
    train();
    memory.reset_peak(job.device());
    const auto kept = static_cast<double>(memory.stats(job.device()).in_use);
    train();
    const auto peak = static_cast<double>(memory.stats(job.device()).peak);
    const double w = job.world_size(), z = sizes.zero;
    const double formula = 4.0 * ((z >= 3 ? 1 / w : 1) + (z >= 2 ? 1 / w : 1) + 2 * (z >= 1 ? 1 / w : 1));
    if (job.is_rank0())
      fmt::print("| {} | {:.0f} | {:.1f} M | {:.2f} | {:.2f} | {:.2f} |\n",
                 sizes.zero == 0 ? "DDP" : fmt::format("ZeRO-{}", sizes.zero), w, parameters / 1e6, formula,
                 kept / parameters, peak / parameters);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
