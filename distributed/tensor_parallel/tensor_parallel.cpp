#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/process_group/coalesced.h"
#include "lockstep/distributed/process_group/disagreement.h"
#include "lockstep/distributed/tensor_parallel/alike_gradients.h"
#include "lockstep/distributed/tensor_parallel/tensor_divided.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim/gradients_in_parts.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::distributed {
namespace {

const char* kind_of(TensorSplit split) {
  return split == TensorSplit::vocabulary ? "nn::Embedding"
         : split == TensorSplit::heads    ? "nn::MultiheadAttention"
                                          : "nn::Linear";
}

}  // namespace

/// Whether `name` is one of those that `pattern` stands for.
bool TensorParallel::names(std::string_view pattern, std::string_view name) {
  for (;;) {
    const std::size_t p = pattern.find('.'), n = name.find('.');
    const std::string_view one = pattern.substr(0, p);
    if (one != "*" && one != name.substr(0, n)) return false;
    if (p == std::string_view::npos || n == std::string_view::npos) return p == n;
    pattern.remove_prefix(p + 1);
    name.remove_prefix(n + 1);
  }
}

TensorParallel::TensorParallel(nn::Module& module, const std::vector<TensorRule>& plan,
                               const TensorParallelOptions& options)
    : module_(module),
      tokens_(options.sequence_parallel || options.context_parallel),
      context_(options.context_parallel) {
  LOCKSTEP_CHECK(!(options.sequence_parallel && options.context_parallel),
                 "[TensorParallel] sequence_parallel divides layers and context_parallel does not; choose one");
  shards_ = std::make_unique<TensorShards>(options.group ? options.group : make_single_process_group(),
                                           options.logical_shards);
  for (const TensorRule& rule : plan) {
    const auto found = [this] { return divided_.size() + dropouts_.size() + by_function_.size(); };
    const std::size_t before = found();
    find(module, {}, rule);
    LOCKSTEP_CHECK(find_parameters(rule) || found() > before,
                   "[TensorParallel] no layer of the model is called '{}'; look at the names "
                   "that named_modules() has",
                   rule.layers);
  }
  if (context_) check_all_are_named();
  for (const Divided& divided : divided_) check(divided);
  const Places places = dropouts_.empty() ? Places() : places_of_columns();
  const NoGradGuard values_only;
  if (ProcessGroup& group = shards_->group(); group.world_size() > 1) {
    std::string text = fmt::format("{} shards{}:", shards_->count(),
                                   context_  ? ", tokens alone"
                                   : tokens_ ? ", tokens too"
                                             : "");
    for (const TensorRule& rule : plan)
      text += fmt::format(" {} {}/{}/{}{}", rule.layers, static_cast<int>(rule.split), rule.parts, rule.dim,
                          rule.gathers ? ", whole" : "");
    const auto found = find_disagreement(text, group);
    LOCKSTEP_CHECK(!found, "[TensorParallel] the ranks were given different plans: '{}' and '{}'; give all the same",
                   found->of_rank0, found->of_other);
    std::vector<Tensor> tensors;
    for (const nn::NamedTensor& each : module.state()) tensors.push_back(each.tensor);
    broadcast_coalesced(tensors, group);
  }
  for (const Divided& divided : divided_) divide(divided);
  for (const auto& set : by_function_) set();
  const int ranks = shards_->group().world_size();
  if (ranks == 1) return;
  for (nn::Dropout* each : dropouts_)
    each->set_part(-1, [places, rank = shards_->group().rank(), ranks](std::int64_t own) {
      const auto found = places.find(own);
      return found != places.end() ? found->second : nn::Dropout::Place{.first = rank * own, .size = ranks * own};
    });
  std::vector<Tensor> in_parts;
  for (const Divided& divided : divided_) in_parts.push_back(divided.parameter);
  gradients_in_parts_ = std::make_unique<optim::detail::GradientsInParts>(
      std::move(in_parts), optim::detail::GradientsInParts::Kind::part,
      fmt::format(
          "is this rank's part of a layer that {} ranks hold together, and so is its gradient; call "
          "clip_grad_norm() of the TensorParallel, with the optimizer if a step divides gradients (ZeRO), or of the "
          "MeshModel where the model is divided further",
          ranks));
  std::vector<nn::NamedTensor> whole;
  for (const nn::NamedTensor& each : module.named_parameters())
    if (!divided_as(each.tensor)) whole.push_back(each);
  alike_gradients_ = std::make_unique<AlikeGradients>(std::move(whole), shards_->group_pointer());
  const std::lock_guard lock(all_mutex_);
  all_.push_back(this);
}

TensorParallel::~TensorParallel() {
  const std::lock_guard lock(all_mutex_);
  std::erase(all_, this);
}

double TensorParallel::average_numel(const Tensor& parameter) {
  const std::lock_guard lock(all_mutex_);
  for (const TensorParallel* each : all_)
    if (const Divided* const divided = each->divided_as(parameter)) {
      const auto& [dim, size, parts] = divided->division;
      double numel = static_cast<double>(size * parts) / static_cast<double>(each->shards_->group().world_size());
      for (int d = 0; d < parameter.dim(); ++d)
        if (d != dim) numel *= static_cast<double>(parameter.size(d));
      return numel;
    }
  return static_cast<double>(parameter.numel());
}

void TensorParallel::find(nn::Module& module, const std::string& name, const TensorRule& rule) {
  for (const auto& [child_name, child] : module.named_children())
    find(*child, name.empty() ? child_name : name + "." + child_name, rule);
  if (name.empty() || !names(rule.layers, name)) return;
  LOCKSTEP_CHECK(!rule.gathers || (rule.split == TensorSplit::column && rule.parts == 1),
                 "[TensorParallel] layer '{}' is to gather its outputs; only a column layer of one part can", name);
  LOCKSTEP_CHECK(rule.parts >= 1, "[TensorParallel] layer '{}' has {} parts; expected 1 or more", name, rule.parts);
  const TensorShards& shards = *shards_;
  auto* const linear = dynamic_cast<nn::Linear*>(&module);
  auto* const table = dynamic_cast<nn::Embedding*>(&module);
  if (auto* const dropout = dynamic_cast<nn::Dropout*>(&module); dropout && rule.split == TensorSplit::column) {
    take(module, name);
    return dropouts_.push_back(dropout);
  }
  if (rule.split == TensorSplit::heads && find_norm(module, name, rule.dim)) return;
  if (context_) return find_in_context(module, name, rule);
  LOCKSTEP_CHECK(rule.split != TensorSplit::alike,
                 "[TensorParallel] the plan has layer '{}' as alike on all ranks, which layers are that it leaves out; "
                 "set context_parallel or leave the rule out",
                 name);
  if (rule.split == TensorSplit::sequence) return find_by_tokens(module, name);
  auto* const attention = dynamic_cast<nn::MultiheadAttention*>(&module);
  const bool fits = rule.split == TensorSplit::vocabulary ? table != nullptr
                    : rule.split == TensorSplit::heads    ? attention != nullptr
                                                          : linear != nullptr;
  LOCKSTEP_CHECK(fits, "[TensorParallel] layer '{}' is a {}; the plan divides it as a {}", name, module.type_name(),
                 kind_of(rule.split));
  std::int64_t heads = 0;
  const auto add = [&](const char* member, const Tensor& parameter, int dim, std::int64_t parts, const char* what,
                       std::function<void()> set = {}) {
    if (parameter.defined())
      divided_.push_back({name + "." + member,
                          parameter,
                          {.dim = dim, .size = parameter.size(dim) / parts, .parts = parts},
                          what,
                          heads,
                          std::move(set)});
  };
  const auto by_row = [&](nn::Linear& layer, const char* member) {
    add(member, layer.weight, 1, 1, "inputs", [&layer, &shards, tokens = tokens_] {
      layer.set_function([&shards, tokens](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return (tokens ? row_parallel_linear_of_tokens : row_parallel_linear)(x, weight, bias, shards);
      });
    });
  };
  const auto by_column = [&shards, tokens = tokens_, gathers = rule.gathers](std::int64_t parts,
                                                                             std::int64_t outputs = 0) {
    return nn::Linear::Function([=, &shards](const Tensor& x, const Tensor& weight, const Tensor& bias) {
      const Tensor own =
          (tokens ? column_parallel_linear_of_tokens : column_parallel_linear)(x, weight, bias, shards, parts);
      return gathers ? gather_columns(own, shards, outputs) : own;
    });
  };
  switch (rule.split) {
    case TensorSplit::column: {
      LOCKSTEP_CHECK(linear->weight.size(0) % rule.parts == 0,
                     "[TensorParallel] the {} outputs of layer '{}' are no {} equal parts", linear->weight.size(0),
                     name, rule.parts);
      add("weight", linear->weight, 0, rule.parts, "outputs",
          [linear, function = by_column(rule.parts, linear->weight.size(0))] { linear->set_function(function); });
      add("bias", linear->bias, 0, rule.parts, "outputs");
      if (rule.parts == 1 && !rule.gathers) columns_.push_back(linear->weight.size(0));
      break;
    }
    case TensorSplit::row:
      by_row(*linear, "weight");
      break;
    case TensorSplit::vocabulary:
      add("weight", table->weight, 0, 1, "rows", [table, &shards, rows = table->weight.size(0)] {
        table->set_function([&shards, rows](const Tensor& weight, const Tensor& index) {
          return vocabulary_parallel_embedding(weight, index, shards, rows);
        });
      });
      break;
    case TensorSplit::heads: {
      heads = attention->heads();
      add("in_proj_weight", attention->in_proj_weight, 0, 3, "heads",
          [attention, three = by_column(3), one = by_column(1), own = heads / shards.group().world_size(),
           rank = shards.group().rank(), lengths = tokens_ ? shards.group().world_size() : 1] {
            attention->set_projection(three, one, own, own * rank, lengths);
          });
      add("in_proj_bias", attention->in_proj_bias, 0, 3, "heads");
      by_row(attention->out_proj, "out_proj.weight");
      break;
    }
    case TensorSplit::sequence:
    case TensorSplit::alike:
      break;  // above
  }
}

void TensorParallel::check(const Divided& divided) const {
  LOCKSTEP_CHECK(divided.heads % shards_->count() == 0,
                 "[TensorParallel] the {} heads of '{}' cannot be divided evenly into {} tensor shards", divided.heads,
                 divided.name, shards_->count());
  LOCKSTEP_CHECK(divided.division.size >= shards_->count(),
                 "[TensorParallel] the {} {} of '{}' are fewer than the {} tensor shards, of which each needs one",
                 divided.division.size, divided.what, divided.name, shards_->count());
  const auto same = [&](const Divided& other) { return other.parameter.is_same(divided.parameter); };
  LOCKSTEP_CHECK(std::ranges::count_if(divided_, same) == 1, "[TensorParallel] the plan divides '{}' more than once",
                 divided.name);
}

void TensorParallel::divide(const Divided& divided) const {
  nn::replace_value(divided.parameter, divided.division.own_part(divided.parameter, *shards_));
  if (divided.set) divided.set();
}

/// Where this rank's columns lie, by their number, which is all that dropout behind a column layer sees of them.
TensorParallel::Places TensorParallel::places_of_columns() const {
  Places places;
  for (int rank = 0; rank < shards_->group().world_size(); ++rank) {  // of all, so that all refuse what one would
    std::map<std::int64_t, std::int64_t> sizes;
    for (const std::int64_t size : columns_) {
      const SizeRun run = shards_->run_of(size, rank);
      const std::int64_t other = sizes.emplace(run.size, size).first->second;
      LOCKSTEP_CHECK(
          other == size,
          "[TensorParallel] dropout cannot tell a layer of {} outputs from one of {}, of which rank {} has {} "
          "each; use numbers of outputs that {} tensor shards divide",
          other, size, rank, run.size, shards_->count());
      if (rank == shards_->group().rank()) places[run.size] = {.first = run.begin, .size = size};
    }
  }
  return places;
}

/// Of how many rows in all `weight` has this rank's, for a head; 0: it is no parameter of the plan, and divided evenly.
std::int64_t TensorParallel::rows_of(const Tensor& weight) const {
  if (const Divided* const divided = divided_as(weight)) return divided->division.size;
  for (const auto& [name, parameter, division, what, heads, set] : divided_)
    LOCKSTEP_CHECK(
        weight.sizes() != parameter.sizes() || division.dim != 0 || shards_->divided(division.size).is_even(),
        "[TensorParallel] a weight {} is none of the divided parameters, but has the sizes of this rank's "
        "part of '{}', which is divided unevenly; pass that parameter itself",
        to_string(weight.sizes()), name);
  return 0;
}

Tensor TensorParallel::cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                                     std::int64_t ignore_index) const {
  LOCKSTEP_CHECK(!tokens_ || (x.defined() && x.dim() >= 3),
                 "[TensorParallel] cross_entropy() got x {}; where tokens are divided it takes [N, tokens / ranks, "
                 "width], so that it knows which targets are this rank's",
                 x.defined() ? to_string(x.sizes()) : "that is undefined");
  if (context_) return cross_entropy_of_tokens(x, weight, target, *shards_, ignore_index);
  const std::int64_t classes = rows_of(weight), all = shards_->size_of_whole(weight.size(0), classes, "cross_entropy");
  if (!tokens_ || target.numel() * shards_->divided(all).run(0).size > kLogitsAtOnce)
    return vocabulary_parallel_head_cross_entropy(tokens_ ? gather_tokens(x, *shards_).flatten(0, -2) : x, weight,
                                                  tokens_ ? target.flatten() : target, *shards_, classes, ignore_index);
  const Tensor logits = column_parallel_linear_of_tokens(x, weight, {}, *shards_);
  return vocabulary_parallel_cross_entropy(logits.flatten(0, -2), target.flatten(), *shards_, classes, ignore_index);
}

Tensor TensorParallel::logits(const Tensor& x, const Tensor& weight) const {
  if (context_) return linear(gather_tokens(x, *shards_), weight);
  const Divided* const divided = divided_as(weight);
  LOCKSTEP_CHECK(divided,
                 "[TensorParallel] logits() got a weight {} that is none of the divided parameters; expected the table "
                 "or head that is divided by its vocabulary",
                 to_string(weight.sizes()));
  const auto linear = tokens_ ? column_parallel_linear_of_tokens : column_parallel_linear;
  return gather_columns(linear(x, weight, {}, *shards_, 1), *shards_, divided->division.size);
}

Tensor TensorParallel::own_tokens(const Tensor& x) const {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(),
                 "[TensorParallel] own_tokens() takes activations [*, tokens, width], found {}; look tokens up first",
                 x.defined() ? fmt::format("{} {}", name(x.dtype()), to_string(x.sizes())) : "an undefined tensor");
  return tokens_ ? scatter_tokens(x, *shards_) : x;
}

Tensor TensorParallel::all_tokens(const Tensor& x) const {
  return tokens_ ? gather_tokens(x, *shards_) : x;
}

Tensor TensorParallel::apply_to_tokens(const Tensor& x, const std::vector<Tensor>& parameters,
                                       const TokenFunction& compute) const {
  return tokens_ ? distributed::apply_to_tokens(x, parameters, *shards_, compute) : compute(x, parameters);
}

}  // namespace lockstep::distributed
