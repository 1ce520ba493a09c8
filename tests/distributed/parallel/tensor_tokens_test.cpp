// What ranks compute of tokens that are divided over them: attention by heads, and losses.

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
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
  // One for each head, of all samples and of each.
  const Tensor by_head = make_input({kHeads, 8, 8}, 5, kFloat32), first = make_input({1, kHeads, 8, 4}, 6, kFloat32);
  const auto run = [&](Attention& model, const TensorParallel* parallel) {
    const auto own = [&](const Tensor& t) { return parallel ? parallel->own_tokens(t) : t; };
    const auto all = [&](const Tensor& t) { return parallel ? parallel->all_tokens(t) : t; };
    const Tensor leaf = copy_contiguous(x), other = copy_contiguous(memory);
    leaf.set_requires_grad(true);
    other.set_requires_grad(true);
    const Tensor q = own(leaf), k = own(other);
    const Tensor itself = model.attention(q, q, q, {.attn_mask = seen(8, 8), .key_padding_mask = padding});
    const Tensor biased =
        model.attention(q, q, q, {.attn_mask = by_head}) + model.attention(q, k, k, {.attn_mask = first});
    const Tensor out = all(itself + biased + model.attention(q, k, k, {.attn_mask = seen(8, 4)}));
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

// --- what the model has besides layers ------------------------------------------------------------------------------

/// A block with norms of each head (as Qwen's) and a factor for each feature of its own (as CaiT's).
struct Block : nn::Module {
  explicit Block(bool heads_first) : heads_first(heads_first) {}
  bool heads_first;
  nn::RMSNorm norm{this, "norm", kWidth};
  nn::Linear qkv{this, "qkv", kWidth, 3 * kWidth}, out{this, "out", kWidth, kWidth};
  nn::RMSNorm q_norm{this, "q_norm", kWidth / kHeads};
  nn::LayerNorm k_norm{this, "k_norm", kWidth / kHeads};
  nn::Parameter gamma{this, "gamma", ones({kWidth})};

  Tensor forward(Tensor x, const TensorParallel* parallel) {
    const std::vector<Tensor> parts = qkv(norm(x)).chunk(3, -1);
    const auto heads = [&](const Tensor& t, nn::Module* each) {
      Tensor by_head = t.view({t.size(0), t.size(1), -1, kWidth / kHeads});
      if (each && !heads_first) by_head = (*each)(by_head);
      by_head = by_head.transpose(1, 2);
      return each && heads_first ? (*each)(by_head) : by_head;
    };
    const Tensor y = scaled_dot_product_attention(heads(parts[0], &q_norm), heads(parts[1], &k_norm),
                                                  heads(parts[2], nullptr), {.is_causal = true});
    const Tensor mixed = out(y.transpose(1, 2).flatten(2));
    const auto scale = [](const Tensor& own, const std::vector<Tensor>& p) { return own * p[0]; };
    return x + (parallel ? parallel->apply_to_tokens(mixed, {gamma}, scale) : mixed * gamma);
  }
};

TEST(TensorTokens, NormsOfHeadsAndParametersOfTheModelsOwn) {
  const Tensor x = make_input({2, 8, kWidth}, 1, kFloat32), factors = make_input({2, 8, kWidth}, 3, kFloat32);
  for (const bool heads_first : {false, true}) {
    const int dim = heads_first ? -3 : -2;
    const auto results = [&](Block& model, const TensorParallel* parallel) {
      const Tensor leaf = copy_contiguous(x);
      leaf.set_requires_grad(true);
      Tensor y = model.forward(parallel ? parallel->own_tokens(leaf) : leaf, parallel);
      if (parallel) y = parallel->all_tokens(y);
      (y * factors).sum().backward();
      Values found{y.to_vector<double>(), leaf.grad().to_vector<double>()};
      for (const Tensor& p : model.parameters())
        found.push_back((parallel ? parallel->whole_of(p, p.grad()) : p.grad()).to_vector<double>());
      return found;
    };
    Block undivided(heads_first);
    set_weights(undivided);
    const Values alone = results(undivided, nullptr);
    for (const Tokens tokens : {Tokens::all, Tokens::own_between_layers, Tokens::own}) {
      std::vector<TensorRule> plan{{"qkv", TensorSplit::column, 3},
                                   {"out", TensorSplit::row},
                                   {.layers = "q_norm", .split = TensorSplit::heads, .dim = dim},
                                   {.layers = "k_norm", .split = TensorSplit::heads, .dim = dim}};
      if (tokens != Tokens::all)
        plan.insert(plan.end(), {{"norm", TensorSplit::sequence}, {"gamma", TensorSplit::sequence}});
      const auto run = [&](const ProcessGroupPtr& group, std::int64_t shards) {
        Block model(heads_first);
        set_weights(model);
        const TensorParallel parallel(model, plan, options_of(tokens, group, shards));
        return results(model, &parallel);
      };
      const Values one = run(make_single_process_group(), 4);
      expect_near(one, alone);
      for (const int world : {2, 4})
        run_in(world, [&](const ProcessGroupPtr& group) {
          expect_near(run(group, 0), alone);
          EXPECT_EQ(largest_difference(run(group, 4), one), 0.0) << world;
        });
    }
  }
}

// What a plan that has a layer wrong, or ranks that are given different things, would make of the weights.
TEST(TensorTokens, GradientsThatDifferByRankAreAnError) {
  const data::Batch batch = tokens_of(2, 5);
  const auto error_with = [&](const ProcessGroupPtr& group, const std::vector<TensorRule>& plan, Tokens tokens,
                              const std::function<Tensor(const TensorParallel&, Transformer&)>& loss) {
    Transformer model(0.2);
    set_weights(model);
    const TensorParallel parallel(model, plan, options_of(tokens, group, 0));
    return lockstep::testing::error_of([&] { loss(parallel, model).backward(); });
  };
  const auto as_planned = [&](const TensorParallel& parallel, Transformer& model) {
    return loss_of(parallel, model, batch);
  };
  const std::string differs = "differs by rank: its norm is ";
  run_in(2, [&](const ProcessGroupPtr& group) {
    const RandomKeyGuard key(1, 0);
    EXPECT_NE(error_with(group, {{"*", TensorSplit::alike}}, Tokens::own, as_planned).find(differs), std::string::npos);
    // The norms are forgotten.
    std::vector<TensorRule> plan = kPlan;
    plan.push_back({"block_drop", TensorSplit::sequence});
    EXPECT_NE(error_with(group, plan, Tokens::own_between_layers, as_planned).find("of parameter 'norm"),
              std::string::npos);
    // A head of own tokens with a weight that all have alike.
    EXPECT_NE(error_with(group, plan_of(Tokens::own), Tokens::own,
                         [&](const TensorParallel& parallel, Transformer& model) {
                           const Tensor x = model.blocks(parallel.own_tokens(model.drop(model.table(batch.x))));
                           const Tensor logits = parallel.all_tokens(linear(x, model.table.weight));
                           return cross_entropy(logits.flatten(0, 1), batch.y.flatten());
                         })
                  .find("of parameter 'table.weight' " + differs),
              std::string::npos);
    // Other samples, other random numbers.
    for (const Tokens tokens : {Tokens::all, Tokens::own}) {
      EXPECT_NE(error_with(group, plan_of(tokens), tokens,
                           [&](const TensorParallel& parallel, Transformer& model) {
                             return loss_of(parallel, model,
                                            tokens_of(2, static_cast<std::uint32_t>(group->rank() + 1)));
                           })
                    .find(tokens == Tokens::all ? "were given different tokens" : "were given different targets"),
                std::string::npos);
      EXPECT_NE(error_with(group, plan_of(tokens), tokens,
                           [&](const TensorParallel& parallel, Transformer& model) {
                             const RandomKeyGuard other(static_cast<std::uint64_t>(group->rank() + 1), 0);
                             return loss_of(parallel, model, batch);
                           })
                    .find(differs),
                std::string::npos);
    }
  });
}

// A layer with more parameters than its kind has.
TEST(TensorTokens, ParametersBesideALayersOwnAreNamed) {
  struct Adapted : nn::Linear {
    using nn::Linear::Linear;
    nn::Parameter a{this, "a", zeros({kWidth})};
  };
  struct Model : nn::Module {
    Adapted up{this, "up", kWidth, kWidth};
  } model;
  run_in(2, [&](const ProcessGroupPtr& group) {
    EXPECT_NE(lockstep::testing::error_of([&] {
                TensorParallel(model, {{"up", TensorSplit::sequence}}, {.group = group, .context_parallel = true});
              }).find("leaves out parameter 'up.a'"),
              std::string::npos);
    Transformer other;
    const TensorParallel parallel(other, plan_of(Tokens::own), options_of(Tokens::own, group, 0));
    EXPECT_NE(lockstep::testing::error_of([&] {
                parallel.own_tokens(zeros({4, 6}, {.dtype = kInt64}));
              }).find("look tokens up first"),
              std::string::npos);
    EXPECT_TRUE(
        std::isnan(parallel.cross_entropy(zeros({0, 4, kWidth}), other.table.weight, zeros({0, 8}, {.dtype = kInt64}))
                       .item<double>()));
  });
}

// Logits that are made a piece at a time and once more in backward.
TEST(TensorTokens, LargeVocabularies) {
  constexpr std::int64_t kLong = 704, kClasses = 50257, kNarrow = 4;
  const Tensor x = make_input({1, kLong, kNarrow}, 1, kFloat32), table = make_input({kClasses, kNarrow}, 2, kFloat32);
  const Tensor target = (arange(kLong) * 71).view({1, kLong});
  const auto run = [&](const std::function<Tensor(const Tensor& x, const Tensor& table)>& loss_of) {
    const Tensor leaves[] = {copy_contiguous(x), copy_contiguous(table)};
    for (const Tensor& leaf : leaves) leaf.set_requires_grad(true);
    const Tensor loss = loss_of(leaves[0], leaves[1]);
    loss.backward();
    return Values{loss.to_vector<double>(), leaves[0].grad().to_vector<double>(), leaves[1].grad().to_vector<double>()};
  };
  const Values whole = run([&](const Tensor& own, const Tensor& weight) {
    return cross_entropy(linear(own.flatten(0, 1), weight), target.flatten());
  });
  const TensorShards shards(make_single_process_group(), 0);
  expect_near(run([&](const Tensor& own, const Tensor& weight) {
                return cross_entropy_of_tokens(own, weight, target, shards);
              }),
              whole);
  expect_near(run([&](const Tensor& all, const Tensor& weight) {
                return vocabulary_parallel_head_cross_entropy(all.flatten(0, 1), weight, target.flatten(), shards, 0,
                                                              -100);
              }),
              whole);
}

}  // namespace
}  // namespace lockstep::distributed
