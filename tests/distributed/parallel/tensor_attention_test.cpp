// Attention whose heads are divided over ranks, and tokens with them.

#include "lockstep/autograd/ops.h"
#include "tests/distributed/parallel/tensor_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

void expect_near(const Values& own, const Values& expected) {
  EXPECT_LT(largest_difference(own, expected), 1e-5);
}

// Masks are of all tokens where a rank has its own, and keys may be others than queries.
TEST(TensorAttention, MasksAreOfAllTokens) {
  struct Attention : nn::Module {
    nn::MultiheadAttention attention{this, "attention", kWidth, kHeads};
  };
  const Tensor x = make_input({2, 8, kWidth}, 1, kFloat32), memory = make_input({2, 4, kWidth}, 2, kFloat32);
  const Tensor factors = make_input({2, 8, kWidth}, 3, kFloat32);
  const auto seen = [](std::int64_t l, std::int64_t s) {
    return (arange(l * s) % 7).view({l, s}) == 3;  // true is left out
  };
  const Tensor padding = (arange(16) % 5).view({2, 8}) == 4;
  const auto run = [&](Attention& model, const TensorParallel* parallel) {
    const auto own = [&](const Tensor& t) { return parallel ? parallel->own_tokens(t) : t; };
    const auto all = [&](const Tensor& t) { return parallel ? parallel->all_tokens(t) : t; };
    const Tensor leaf = copy_contiguous(x), other = copy_contiguous(memory);
    leaf.set_requires_grad(true);
    other.set_requires_grad(true);
    const Tensor q = own(leaf), k = own(other);
    const Tensor itself = model.attention(q, q, q, {.attn_mask = seen(8, 8), .key_padding_mask = padding});
    const Tensor out = all(itself + model.attention(q, k, k, {.attn_mask = seen(8, 4)}));
    (out * factors).sum().backward();
    return Values{out.to_vector<double>(), leaf.grad().to_vector<double>(), other.grad().to_vector<double>()};
  };
  Attention alone;
  set_weights(alone);
  const Values whole = run(alone, nullptr);
  for (const Tokens tokens : {Tokens::own_between_layers, Tokens::own})
    for (const int world : {1, 2, 4})
      run_in(world, [&](const ProcessGroupPtr& group) {
        Attention model;
        set_weights(model);
        const TensorParallel parallel(model, {{"attention", TensorSplit::heads}}, options_of(tokens, group, 0));
        expect_near(run(model, &parallel), whole);
        const std::vector<Tensor> own = model.parameters(), reference = alone.parameters();
        for (std::size_t p = 0; p < own.size(); ++p)
          expect_near({parallel.whole_of(own[p], own[p].grad()).to_vector<double>()},
                      {reference[p].grad().to_vector<double>()});
      });
}

}  // namespace
}  // namespace lockstep::distributed
