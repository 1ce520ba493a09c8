// Layers with whole weights of which a rank computes its tokens or heads: Notes [Token shards] and [Context
// parallelism].

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/tensor_parallel/tensor_divided.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"
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

bool is_dropout(const nn::Module& module) {
  return dynamic_cast<const nn::Dropout*>(&module) || dynamic_cast<const nn::DropoutByFunction*>(&module);
}

}  // namespace

/// Notes that a rule says how `module` is computed, and that these are parameters of which it does.
void TensorParallel::take(const nn::Module& module, const std::string& name, const std::vector<Tensor>& parameters) {
  LOCKSTEP_CHECK(std::ranges::find(taken_, &module) == taken_.end(),
                 "[TensorParallel] the plan says of layer '{}' more than once how it is computed", name);
  taken_.push_back(&module);
  for (const Tensor& each : parameters)
    if (each.defined()) named_.push_back(each);
}

/// Whether the rule names parameters instead of layers, which it then takes.
bool TensorParallel::find_parameters(const TensorRule& rule) {
  if (rule.split != TensorSplit::alike && rule.split != TensorSplit::sequence) return false;
  bool found = false;
  for (const auto& [name, parameter] : module_.named_parameters()) {
    if (!names(rule.layers, name)) continue;
    named_.push_back(parameter);
    found = true;
  }
  return found;
}

/// Whether the layer is a norm, which then computes a rank's run along `dim` of x.
bool TensorParallel::find_norm(nn::Module& module, const std::string& name, int dim) {
  const auto set = [&](auto& norm) {
    std::vector<Tensor> own{norm.weight};
    if constexpr (requires { norm.bias; }) own.push_back(norm.bias);
    take(module, name, own);
    by_function_.push_back([&norm, &shards = *shards_, dim] {
      norm.set_function(
          [&shards, dim](const nn::NormFunction& compute, const Tensor& x, const Tensor& weight, const Tensor& bias) {
            return apply_to_runs(x, dim, {weight, bias}, shards,
                                 [&](const Tensor& own, const std::vector<Tensor>& parameters) {
                                   return compute(own, parameters[0], parameters[1]);
                                 });
          });
    });
    return true;
  };
  if (auto* const layer_norm = dynamic_cast<nn::LayerNorm*>(&module)) return set(*layer_norm);
  if (auto* const rms_norm = dynamic_cast<nn::RMSNorm*>(&module)) return set(*rms_norm);
  return false;
}

void TensorParallel::find_by_tokens(nn::Module& module, const std::string& name) {
  LOCKSTEP_CHECK(tokens_, "[TensorParallel] the plan has layer '{}' compute its own tokens; set sequence_parallel",
                 name);
  if (find_norm(module, name, -2)) return;
  auto* const dropout = dynamic_cast<nn::Dropout*>(&module);
  LOCKSTEP_CHECK(dropout,
                 "[TensorParallel] layer '{}' is a {}; a {}nn::LayerNorm, nn::RMSNorm or nn::Dropout computes "
                 "its own tokens",
                 name, module.type_name(), context_ ? "nn::Linear, " : "");
  take(module, name);
  by_function_.push_back(
      [dropout, &shards = *shards_] { dropout->set_part(-2, shards.group().rank(), shards.group().world_size()); });
}

void TensorParallel::find_in_context(nn::Module& module, const std::string& name, const TensorRule& rule) {
  const TensorShards& shards = *shards_;
  auto* const linear = dynamic_cast<nn::Linear*>(&module);
  const auto take_linear = [&] {
    LOCKSTEP_CHECK(linear, "[TensorParallel] layer '{}' is a {}; the plan divides it as a nn::Linear", name,
                   module.type_name());
    take(module, name, {linear->weight, linear->bias});
  };
  switch (rule.split) {
    case TensorSplit::column:
      take_linear();
      LOCKSTEP_CHECK(!rule.gathers,
                     "[TensorParallel] layer '{}' is to gather its outputs; with context_parallel have it as sequence, "
                     "and pass what it gives through all_tokens()",
                     name);
      LOCKSTEP_CHECK(linear->weight.size(0) % (rule.parts * shards.count()) == 0,
                     "[TensorParallel] the {} outputs of layer '{}' are no {} part(s) of {} equal runs",
                     linear->weight.size(0), name, rule.parts, shards.count());
      if (rule.parts == 1) columns_.push_back(linear->weight.size(0));
      return by_function_.push_back(
          [linear, &shards, parts = rule.parts] { linear->set_function(to_columns(shards, parts)); });
    case TensorSplit::row:
      take_linear();
      return by_function_.push_back([linear, &shards] { linear->set_function(to_tokens(shards)); });
    case TensorSplit::heads: {
      auto* const attention = dynamic_cast<nn::MultiheadAttention*>(&module);
      LOCKSTEP_CHECK(attention, "[TensorParallel] layer '{}' is a {}; the plan divides it as a nn::MultiheadAttention",
                     name, module.type_name());
      const std::int64_t heads = attention->heads(), ranks = shards.group().world_size();
      LOCKSTEP_CHECK(heads % shards.count() == 0,
                     "[TensorParallel] the {} heads of '{}' cannot be divided evenly into {} tensor shards", heads,
                     name, shards.count());
      take(module, name, {attention->in_proj_weight, attention->in_proj_bias});
      take(attention->out_proj, name + ".out_proj", {attention->out_proj.weight, attention->out_proj.bias});
      return by_function_.push_back([attention, &shards, own = heads / ranks] {
        attention->set_projection(to_columns(shards, 3), to_columns(shards, 1), own, own * shards.group().rank(),
                                  shards.group().world_size());
        attention->out_proj.set_function(to_tokens(shards));
      });
    }
    case TensorSplit::sequence:
      if (!linear) return find_by_tokens(module, name);
      take_linear();
      return by_function_.push_back([linear, &shards] {
        linear->set_function([&shards](const Tensor& x, const Tensor& weight, const Tensor& bias) {
          return linear_of_tokens(x, weight, bias, shards);
        });
      });
    case TensorSplit::alike:
      for (nn::Module* each : module.modules()) take(*each, name, each->parameters(false));
      return by_function_.push_back([] {});  // nothing to set
    case TensorSplit::vocabulary:
      throw Error(
          fmt::format("[TensorParallel] context_parallel divides no vocabulary; have '{}' as alike and pass "
                      "what it gives through own_tokens()",
                      name));
  }
}

/// A layer that the plan forgets would have its own tokens' gradients, and a dropout one mask for all ranks' tokens.
void TensorParallel::check_all_are_named() const {
  for (const auto& [name, parameter] : module_.named_parameters()) {
    const auto is_it = [&, parameter = parameter](const Tensor& each) { return each.is_same(parameter); };
    LOCKSTEP_CHECK(
        std::ranges::any_of(named_, is_it),
        "[TensorParallel] the plan leaves out parameter '{}'; with context_parallel it says of each layer how "
        "it is computed: sequence, heads, column, row, or alike if all ranks compute the same with it. A "
        "parameter of the model's own that is used on a rank's tokens is sequence, and used by "
        "apply_to_tokens()",
        name);
  }
  for (const auto& [name, module] : module_.named_modules())
    LOCKSTEP_CHECK(!is_dropout(*module) || std::ranges::find(taken_, module) != taken_.end(),
                   "[TensorParallel] the plan leaves out '{}', a {}; with context_parallel it is sequence, or alike if "
                   "all ranks drop the same",
                   name, module->type_name());
}

}  // namespace lockstep::distributed
