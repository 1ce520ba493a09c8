// What lies between divided layers, where its tokens are divided besides.

#include <utility>

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"

namespace lockstep::distributed {
namespace {

class ScatterTokensBackward final : public Node {
 public:
  const char* name() const override { return "ScatterTokensBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};  // on all ranks alike
    return {shards->all_tokens(grads[0])};
  }

  const TensorShards* shards = nullptr;
};

class GatherTokensBackward final : public Node {
 public:
  const char* name() const override { return "GatherTokensBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};
    return {shards->own_tokens(grads[0])};
  }

  const TensorShards* shards = nullptr;
};

/// Copies of parameters, one of each for each of this rank's shards: output shard * parameters + parameter.
class TokenShardParametersBackward final : public Node {
 public:
  const char* name() const override { return "TokenShardParametersBackward"; }

  TensorList apply(TensorList grads) override {
    const NoGradGuard values_only;
    TensorList result;
    std::vector<std::size_t> wanted;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      result.push_back(Tensor());
      if (needs_grad(p)) wanted.push_back(p);
    }
    std::vector<Tensor> parts;  // all parameters' in one, for one operation
    for (std::size_t first = 0; first < grads.size(); first += sizes.size()) {
      std::vector<Tensor> flat;
      for (const std::size_t p : wanted) {
        const Tensor& grad = grads[first + p];
        flat.push_back(grad.defined() ? grad.reshape({sizes[p].numel()}) : zeros({sizes[p].numel()}, options));
      }
      parts.push_back(flat.size() == 1 ? copy_contiguous(flat.front()) : cat(flat));
    }
    const Tensor sum = shards->sum(std::move(parts));
    std::int64_t at = 0;
    for (const std::size_t p : wanted) {
      result[p] = copy_contiguous(sum.as_strided(sizes[p], contiguous_strides(sizes[p]), sum.offset() + at));
      at += sizes[p].numel();
    }
    return result;
  }

  const TensorShards* shards = nullptr;
  std::vector<Shape> sizes;
  TensorOptions options;
};

}  // namespace

Tensor scatter_tokens(const Tensor& x, const TensorShards& shards) {
  const Tensor out = shards.own_tokens(x);
  if (auto* node = record<ScatterTokensBackward>(out, {&x})) node->shards = &shards;
  return out;
}

Tensor gather_tokens(const Tensor& x, const TensorShards& shards) {
  Tensor out = shards.all_tokens(x);
  if (shards.group().world_size() == 1) out = out.detach();
  if (auto* node = record<GatherTokensBackward>(out, {&x})) node->shards = &shards;
  return out;
}

Tensor apply_to_tokens(const Tensor& x, const std::vector<Tensor>& parameters, const TensorShards& shards,
                       const std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>& compute) {
  return apply_to_runs(x, -2, parameters, shards, compute);
}

Tensor apply_to_runs(const Tensor& x, int dim, const std::vector<Tensor>& parameters, const TensorShards& shards,
                     const std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>& compute) {
  const std::int64_t local = shards.mine().size();
  LOCKSTEP_CHECK(x.defined() && dim < 0 && x.dim() >= -dim && x.size(dim) % local == 0,
                 "[TensorParallel] the {} of {} cannot be divided evenly into {} tensor shards",
                 dim == -2 ? "tokens" : "heads", x.defined() ? to_string(x.sizes()) : "an undefined tensor", local);
  std::vector<const Tensor*> inputs;
  for (const Tensor& each : parameters)
    if (each.defined()) inputs.push_back(&each);
  std::vector<Tensor> copies;
  for (std::int64_t s = 0; s < local; ++s)
    for (const Tensor* each : inputs) copies.push_back(each->detach());
  std::vector<const Tensor*> outputs;
  for (const Tensor& each : copies) outputs.push_back(&each);
  if (auto* node = record_many<TokenShardParametersBackward>(outputs, inputs)) {
    node->shards = &shards;
    for (const Tensor* each : inputs) node->sizes.push_back(each->sizes());
    node->options = options_of(*inputs.front());
  }
  std::vector<Tensor> results;
  std::size_t next = 0;
  const std::int64_t run = x.size(dim) / local;
  for (std::int64_t s = 0; s < local; ++s) {
    std::vector<Tensor> own;
    for (const Tensor& each : parameters) own.push_back(each.defined() ? copies[next++] : Tensor());
    results.push_back(compute(local == 1 ? x : x.narrow(dim, s * run, run), own));
  }
  return local == 1 ? results.front() : cat(results, dim);
}

}  // namespace lockstep::distributed
