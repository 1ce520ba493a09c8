// What a plan means where tokens alone are divided: Note [Context parallelism].

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::distributed {
namespace {

nn::Linear::Function to_columns(const TensorShards& shards, std::int64_t parts) {
  return [&shards, parts](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return own_columns_of_all_tokens(linear_of_tokens(x, weight, bias, shards), shards, parts);
  };
}

nn::Linear::Function to_tokens(const TensorShards& shards) {
  return [&shards](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return linear_of_tokens(all_columns_of_own_tokens(x, shards), weight, bias, shards);
  };
}

}  // namespace

void TensorParallel::find_in_context(nn::Module& module, const std::string& name, const TensorRule& rule) {
  const TensorShards& shards = *shards_;
  auto* const linear = dynamic_cast<nn::Linear*>(&module);
  switch (rule.split) {
    case TensorSplit::column:
      LOCKSTEP_CHECK(linear, "[TensorParallel] layer '{}' is a {}; the plan divides it as a nn::Linear", name,
                     module.type_name());
      LOCKSTEP_CHECK(!rule.gathers && linear->weight.size(0) % (rule.parts * shards.count()) == 0,
                     "[TensorParallel] the {} outputs of layer '{}' are no {} part(s) of {} equal runs",
                     linear->weight.size(0), name, rule.parts, shards.count());
      if (rule.parts == 1) columns_.push_back(linear->weight.size(0));
      return by_tokens_.push_back(
          [linear, &shards, parts = rule.parts] { linear->set_function(to_columns(shards, parts)); });
    case TensorSplit::row:
      LOCKSTEP_CHECK(linear, "[TensorParallel] layer '{}' is a {}; the plan divides it as a nn::Linear", name,
                     module.type_name());
      return by_tokens_.push_back([linear, &shards] { linear->set_function(to_tokens(shards)); });
    case TensorSplit::heads: {
      auto* const attention = dynamic_cast<nn::MultiheadAttention*>(&module);
      LOCKSTEP_CHECK(attention, "[TensorParallel] layer '{}' is a {}; the plan divides it as a nn::MultiheadAttention",
                     name, module.type_name());
      const std::int64_t heads = attention->heads(), ranks = shards.group().world_size();
      LOCKSTEP_CHECK(heads % shards.count() == 0,
                     "[TensorParallel] the {} heads of '{}' cannot be divided evenly into {} tensor shards", heads,
                     name, shards.count());
      return by_tokens_.push_back([attention, &shards, own = heads / ranks] {
        attention->set_projection(to_columns(shards, 3), to_columns(shards, 1), own, own * shards.group().rank(),
                                  shards.group().world_size());
        attention->out_proj.set_function(to_tokens(shards));
      });
    }
    case TensorSplit::sequence:
      if (linear)
        return by_tokens_.push_back([linear, &shards] {
          linear->set_function([&shards](const Tensor& x, const Tensor& weight, const Tensor& bias) {
            return linear_of_tokens(x, weight, bias, shards);
          });
        });
      return find_by_tokens(module, name);
    case TensorSplit::alike:
      return by_tokens_.push_back([] {});  // nothing to set
    case TensorSplit::vocabulary:
      throw Error(
          fmt::format("[TensorParallel] context_parallel divides no vocabulary; have '{}' as alike and pass "
                      "what it gives through own_tokens()",
                      name));
  }
}

/// A layer that the plan forgets would have its own tokens' gradients, which differ by rank.
void TensorParallel::check_all_are_named(const std::vector<TensorRule>& plan) const {
  for (const auto& [name, parameter] : module_.named_parameters()) {
    const auto covers = [&](const TensorRule& rule) {
      for (std::size_t end = name.size(); end != std::string::npos; end = name.rfind('.', end - 1)) {
        if (names(rule.layers, std::string_view(name).substr(0, end))) return true;
        if (end == 0) break;
      }
      return false;
    };
    LOCKSTEP_CHECK(std::ranges::any_of(plan, covers),
                   "[TensorParallel] the plan leaves out parameter '{}'; with context_parallel it says of each layer "
                   "how it is computed: sequence, heads, column, row, or alike if all ranks compute the same with it",
                   name);
  }
}

}  // namespace lockstep::distributed
