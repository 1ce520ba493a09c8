// What ranks compute of tokens that are divided over them: attention by heads, and losses.

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

// Targets that count for nothing lie on any rank, and leave one without any.
TEST(TensorTokens, SomeMayBeIgnored) {
  data::Batch batch = tokens_of(3, 5);
  const Tensor positions = arange(3 * kLength).view({3, kLength});
  batch.y = where(positions % 3 == 1, batch.y, full({3, kLength}, -100, kInt64));
  batch.y.narrow(1, 0, 2).fill_(-100);
  const auto run = [&](const ProcessGroupPtr& group, Tokens tokens, std::int64_t shards) {
    Transformer model;
    set_weights(model);
    const TensorParallel parallel(model, plan_of(tokens), options_of(tokens, group, shards));
    const Tensor loss = loss_of(parallel, model, batch);
    loss.backward();
    Values found{loss.to_vector<double>()};
    for (const Tensor& p : model.parameters()) found.push_back(parallel.whole_of(p, p.grad()).to_vector<double>());
    return found;
  };
  Transformer model;
  set_weights(model);
  const Tensor loss = cross_entropy(linear(model.hidden(batch.x), model.table.weight), batch.y.reshape({-1}));
  loss.backward();
  Values alone{loss.to_vector<double>()};
  for (const Tensor& p : model.parameters()) alone.push_back(p.grad().to_vector<double>());
  for (const Tokens tokens : {Tokens::all, Tokens::own_between_layers, Tokens::own, Tokens::own_or_columns}) {
    const Values one = run(make_single_process_group(), tokens, 4);
    expect_near(one, alone);
    for (const int world : {2, 4})
      run_in(world, [&](const ProcessGroupPtr& group) {
        EXPECT_EQ(largest_difference(run(group, tokens, 4), one), 0.0) << world;
      });
  }
  run_in(2, [&](const ProcessGroupPtr& group) {
    const TensorParallel parallel(model, plan_of(Tokens::own), options_of(Tokens::own, group, 0));
    EXPECT_NE(lockstep::testing::error_of([&] {
                parallel.cross_entropy(zeros({12, kWidth}), model.table.weight, batch.y);
              }).find("it takes [N, tokens / ranks, width]"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace lockstep::distributed
