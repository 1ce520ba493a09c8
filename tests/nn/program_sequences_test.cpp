// Programs over words, waves and states, as their PyTorch originals are written; see scripts/golden_models.py.

#include "programs.h"

namespace lockstep::testing {
namespace {

class SequencePrograms : public Programs {};
INSTANTIATE_TEST_SUITE_P(Programs, SequencePrograms, ::testing::Values(kFloat64, kFloat32),
                         [](const auto& info) { return std::string(name(info.param)); });

struct WordModel : nn::Module {
  nn::Embedding encoder{this, "encoder", 11, 6};
  nn::LSTM rnn{this, "rnn", 6, 8, {.num_layers = 2}};
  nn::Linear decoder{this, "decoder", 8, 11};
  nn::LSTMState state;

  Tensor forward(Tensor text) override {
    const auto [output, next] = rnn(encoder(text), state);
    state = next.detach();
    return decoder(output);
  }
};

TEST_P(SequencePrograms, WordLanguageModel) {
  const Program program("word_model", GetParam());
  WordModel net;
  program.start(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.5});
  program.expect_losses([&] {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(net(program["text"]).view({-1, 11}), program["target"].view({-1}));
    loss.backward();
    optim::clip_grad_norm_(net.parameters(), 0.25);
    optimizer.step();
    return loss.item();
  });
}

struct Seq2Seq : nn::ModuleOf<Seq2Seq> {
  nn::Embedding source{this, "source", 9, 5};
  nn::GRU encoder{this, "encoder", 5, 4, {.batch_first = true, .bidirectional = true}};
  nn::Embedding target{this, "target", 7, 5};
  nn::GRUCell decoder{this, "decoder", 5 + 8, 8};
  nn::Linear out{this, "out", 16, 7};

  Tensor forward(const Tensor& words, const Tensor& answer) {
    const auto [memory, last] = encoder(source(words));
    Tensor h = cat({last[0], last[1]}, 1), context = zeros_like(h);
    std::vector<Tensor> logits;
    for (std::int64_t t = 0; t < answer.size(1); ++t) {
      h = decoder(cat({target(answer.select(1, t)), context}, 1), h);
      const Tensor weights = softmax(bmm(memory, h.unsqueeze(2)).squeeze(2), 1);
      context = einsum("nt,ntc->nc", {weights, memory});
      logits.push_back(out(cat({h, context}, 1)));
    }
    return stack(logits, 1);
  }
};

TEST_P(SequencePrograms, SequenceToSequence) {
  const Program program("seq2seq", GetParam());
  Seq2Seq net;
  program.start(net);
  optim::RMSprop optimizer(net.parameters(), {.lr = 0.01});
  const Tensor source = program["source"], target = program["target"];
  program.expect_losses(optimizer, [&] {
    const Tensor logits = net(source, target.slice(1, 0, -1));
    return nll_loss(log_softmax(logits, -1).flatten(0, 1), target.slice(1, 1, target.size(1)).flatten(),
                    {.ignore_index = 0});
  });
}

struct Translation : nn::ModuleOf<Translation> {
  nn::Embedding source{this, "source", 9, 12}, target{this, "target", 7, 12};
  nn::Transformer transformer{
      this,
      "transformer",
      12,
      3,
      {.encoder_layers = 2, .decoder_layers = 2, .layer = {.dim_feedforward = 20, .dropout = 0}}};
  nn::Linear out{this, "out", 12, 7};

  Tensor forward(const Tensor& words, const Tensor& answer) {
    const Tensor padding = words == 0;
    const Tensor later = triu(ones({answer.size(1), answer.size(1)}, {.dtype = kBool}), 1);
    return out(transformer(
        source(words), target(answer),
        {.src = {.key_padding_mask = padding}, .tgt = {.attn_mask = later}, .memory = {.key_padding_mask = padding}}));
  }
};

TEST_P(SequencePrograms, TranslationByATransformer) {
  const Program program("translation", GetParam());
  Translation net;
  program.start(net);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  const Tensor source = program["source"], target = program["target"];
  program.expect_losses(optimizer, [&] {
    return cross_entropy(net(source, target.slice(1, 0, -1)).flatten(0, 1),
                         target.slice(1, 1, target.size(1)).flatten());
  });
}

struct Sequence : nn::Module {
  nn::LSTMCell lstm1{this, "lstm1", 1, 5}, lstm2{this, "lstm2", 5, 5};
  nn::Linear linear{this, "linear", 5, 1};

  Tensor forward(Tensor x) override {
    std::vector<Tensor> outputs;
    nn::LSTMState first, second;
    for (const Tensor& value : x.split(1, 1)) {
      first = lstm1(value, first);
      second = lstm2(first.h, second);
      outputs.push_back(linear(second.h));
    }
    return cat(outputs, 1);
  }
};

TEST_P(SequencePrograms, TimeSequencePrediction) {
  const Program program("sequence", GetParam());
  Sequence net;
  program.start(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.5, .momentum = 0.9});
  const Tensor x = program["x"];
  program.expect_losses(optimizer, [&] { return huber_loss(net(x.slice(1, 0, -1)), x.slice(1, 1, x.size(1)), 0.3); });
}

struct ActorCritic : nn::ModuleOf<ActorCritic> {
  nn::Linear affine{this, "affine", 4, 16}, action{this, "action", 16, 3}, value{this, "value", 16, 1};

  std::pair<Tensor, Tensor> forward(const Tensor& states) {
    const Tensor x = relu(affine(states));
    return {softmax(action(x), -1), value(x)};
  }
};

TEST_P(SequencePrograms, ActorCritic) {
  const Program program("actor_critic", GetParam());
  ActorCritic net;
  program.start(net);
  optim::Adam optimizer(net.parameters(), {.lr = 0.03});
  program.expect_losses(optimizer, [&] {
    const auto [probabilities, values] = net(program["states"]);
    Tensor returns = program["rewards"].flip({0}).cumsum(0).flip({0});
    returns = (returns - returns.mean()) / (returns.std() + 1e-8);
    const Tensor log_prob = log(probabilities.gather(1, program["actions"].unsqueeze(1))).squeeze(1);
    const Tensor advantage = returns - values.squeeze(1).detach();
    return (-log_prob * advantage).sum() + smooth_l1_loss(values.squeeze(1), returns, 1.0, Reduction::sum);
  });
}

TEST(ActorCritic, DrawsItsActions) {
  manual_seed(3);
  const Tensor probabilities = softmax(randn({5, 3}), -1);
  const Tensor actions = multinomial(probabilities, 1).squeeze(1);
  EXPECT_EQ(actions.sizes(), Shape({5}));
  EXPECT_TRUE(((actions >= 0) & (actions < 3)).all().item<bool>());
}

struct Siamese : nn::Module {
  nn::Conv1d conv1{this, "conv1", 2, 4, 3, {.padding = 1}}, conv2{this, "conv2", 4, 4, 3, {.stride = 2}};
  nn::Linear fc{this, "fc", 8, 5};

  Tensor forward(Tensor x) override {
    x = max_pool1d(gelu(conv1(x)), 2);
    return normalize(fc(softsign(conv2(x)).flatten(1)), 2.0, 1);
  }
};

TEST_P(SequencePrograms, SiameseTriplets) {
  const Program program("siamese", GetParam());
  Siamese net;
  program.start(net);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  program.expect_losses(optimizer, [&] {
    const Tensor a = net(program["anchor"]), p = net(program["positive"]), n = net(program["negative"]);
    const Tensor apart = nn::CosineEmbeddingLoss(0.1)(a, n, -ones({4}, {.dtype = GetParam()}));
    return nn::TripletMarginLoss(1.0)(a, p, n) + apart;
  });
}

}  // namespace
}  // namespace lockstep::testing
