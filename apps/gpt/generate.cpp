#include "apps/gpt/generate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/mode_guard.h"

namespace lockstep::gpt {
namespace {

std::int32_t draw(const Tensor& logits, const GenerateOptions& options) {
  const double largest = max(logits).item<double>();  // NaN if one is
  LOCKSTEP_CHECK(
      std::isfinite(largest),
      "[generate] the model gives a token the logit {}: its weights are not finite, or too large; a training "
      "with a smaller learning rate or clipped gradients may not end so",
      std::isnan(largest) ? "NaN" : "infinity");
  constexpr double kCold = 1e-20;  // logits over less may be infinite
  if (options.temperature < kCold) return static_cast<std::int32_t>(logits.argmax().item<std::int64_t>());
  const std::int64_t kept = options.top_k > 0 ? std::min(options.top_k, logits.size(0)) : logits.size(0);
  const Tensor scaled = logits / options.temperature;
  if (kept == logits.size(0)) return static_cast<std::int32_t>(multinomial(softmax(scaled, 0)).item<std::int64_t>());
  const TopK best = topk(scaled, kept);
  const Tensor chosen = multinomial(softmax(best.values, 0));
  return static_cast<std::int32_t>(best.indices.index_select(0, chosen).item<std::int64_t>());
}

/// Random numbers of this seed for its lifetime; then those of the program go on.
class SeedGuard {
 public:
  explicit SeedGuard(std::uint64_t seed) : outer_(initial_seed()), position_(random_position()) { manual_seed(seed); }
  ~SeedGuard() { manual_seed(outer_); }
  SeedGuard(const SeedGuard&) = delete;
  SeedGuard& operator=(const SeedGuard&) = delete;

 private:
  std::uint64_t outer_;
  RandomPositionGuard position_;
};

}  // namespace

std::vector<std::int32_t> generate(LanguageModel& model, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options, const std::function<void(std::int32_t)>& on_token) {
  LOCKSTEP_CHECK(!prompt.empty(), "[generate] expected a prompt of at least one token");
  LOCKSTEP_CHECK(options.max_tokens >= 0 && options.temperature >= 0 && options.top_k >= 0,
                 "[generate] expected max_tokens, temperature and top_k of at least 0");
  const NoGradGuard no_grad;
  const nn::ModeGuard evaluating(model, /*training=*/false);
  const SeedGuard seed(options.seed);
  const Device device = model.device();
  const auto context = static_cast<std::size_t>(model.config().context);
  const auto tokens_of = [&](const std::vector<std::int32_t>& tokens) {
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    return tensor<std::int64_t>(wide).view({1, static_cast<std::int64_t>(wide.size())}).to(device);
  };
  std::optional<KeyValueCache> cache;
  if (options.cache) cache.emplace(model.config(), 1, device);

  std::vector<std::int32_t> seen(
      prompt.size() > context ? prompt.end() - static_cast<std::ptrdiff_t>(context) : prompt.begin(), prompt.end());
  std::vector<std::int32_t> news = seen, generated;
  for (std::int64_t i = 0; i < options.max_tokens && (!options.go_on || options.go_on()); ++i) {
    if (seen.size() > context) {  // by one
      seen.erase(seen.begin(), seen.end() - static_cast<std::ptrdiff_t>(context - context / 2));
      if (cache) cache->clear();
      news = seen;
    }
    const Tensor logits = model.next_logits(tokens_of(cache ? news : seen), cache ? &*cache : nullptr)[0].cpu();
    const RandomKeyGuard key(static_cast<std::uint64_t>(i), 0);
    const std::int32_t token = draw(logits, options);
    if (token == options.stop) break;
    generated.push_back(token);
    if (on_token) on_token(token);
    seen.push_back(token);
    news = {token};
  }
  return generated;
}

}  // namespace lockstep::gpt
