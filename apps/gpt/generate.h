#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/gpt/language_model.h"

namespace lockstep::gpt {

/// Options of generate().
struct GenerateOptions {
  std::int64_t max_tokens = 100;     ///< new ones
  double temperature = 1.0;          ///< divides the logits; 0, or almost: always the likeliest token
  std::int64_t top_k = 0;            ///< only the k likeliest tokens; 0: all
  std::uint64_t seed = 1;            ///< of the draws
  std::int32_t stop = -1;            ///< ends when this token is drawn; -1: none
  std::function<bool()> go_on = {};  ///< asked before each token; false: no more
  bool cache = true;                 ///< keep keys and values; without, all tokens are computed again for each new one
};

/// Continues a text: the tokens that follow `prompt`, which must not be empty. A model sees the tokens of its context:
/// when they are as many as it can take, the older half is forgotten. The same tokens with and without cache, but for
/// rounding. `on_token` hears each one. Draws of number i depend on (seed, i) alone. Without gradients; the model is in
/// evaluation mode meanwhile.
std::vector<std::int32_t> generate(LanguageModel& model, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options = {},
                                   const std::function<void(std::int32_t)>& on_token = {});

}  // namespace lockstep::gpt
