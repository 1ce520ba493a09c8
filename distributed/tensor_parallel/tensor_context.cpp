// Layers with whole weights that compute their rank's tokens, and the exchange of tokens for columns around attention.

#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"

namespace lockstep::distributed {
namespace {

std::int64_t outer_of(const Tensor& x) {
  std::int64_t outer = 1;
  for (int d = 0; d + 2 < x.dim(); ++d) outer *= x.size(d);
  return outer;
}

Shape with_last_two(Shape sizes, std::int64_t tokens, std::int64_t columns) {
  sizes[sizes.dim() - 2] = tokens;
  sizes[sizes.dim() - 1] = columns;
  return sizes;
}

/// The block that rank i has for rank j, of all pairs. `sent` and the result begin with a dimension of ranks.
Tensor exchange(const Tensor& sent, const TensorShards& shards) {
  static const OperationLabel label("tokens for columns");
  const LabelScope scope(label);
  const Tensor received = empty(sent.sizes(), options_of(sent));
  shards.group().all_to_all(received, sent)->wait();
  return received;
}

Tensor columns_for_tokens(const Tensor& x, const TensorShards& shards, std::int64_t parts) {
  const std::int64_t ranks = shards.group().world_size(), outer = outer_of(x), tokens = x.size(-2),
                     own = x.size(-1) / parts / ranks;
  const Tensor sent =
      copy_contiguous(as_contiguous(x.detach()).view({outer, tokens, parts, ranks, own}).permute({3, 0, 1, 2, 4}));
  const Tensor received = exchange(sent, shards).view({ranks, outer, tokens, parts * own});
  return copy_contiguous(received.permute({1, 0, 2, 3})).view(with_last_two(x.sizes(), tokens * ranks, parts * own));
}

Tensor tokens_for_columns(const Tensor& x, const TensorShards& shards, std::int64_t parts) {
  const std::int64_t ranks = shards.group().world_size(), outer = outer_of(x), tokens = x.size(-2) / ranks,
                     own = x.size(-1) / parts;
  const Tensor sent =
      copy_contiguous(as_contiguous(x.detach()).view({outer, ranks, tokens, parts * own}).permute({1, 0, 2, 3}));
  const Tensor received = exchange(sent, shards).view({ranks, outer, tokens, parts, own});
  return copy_contiguous(received.permute({1, 2, 3, 0, 4})).view(with_last_two(x.sizes(), tokens, parts * own * ranks));
}

class ExchangeTokensBackward final : public Node {
 public:
  const char* name() const override { return "ExchangeTokensBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};  // on all ranks alike
    const NoGradGuard values_only;
    return {(to_columns ? tokens_for_columns : columns_for_tokens)(grads[0], *shards, parts)};
  }

  const TensorShards* shards = nullptr;
  std::int64_t parts = 1;
  bool to_columns = false;
};

Tensor exchanged(const Tensor& x, const TensorShards& shards, std::int64_t parts, bool to_columns) {
  if (shards.group().world_size() == 1) return x;
  Tensor out;
  {
    const NoGradGuard values_only;
    out = (to_columns ? columns_for_tokens : tokens_for_columns)(x, shards, parts);
  }
  if (auto* node = record<ExchangeTokensBackward>(out, {&x})) {
    node->shards = &shards;
    node->parts = parts;
    node->to_columns = to_columns;
  }
  return out;
}

void check_tokens(const Tensor& x, const char* what) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 2 && x.is_floating_point(),
                 "[{}] expected x [*, tokens, columns] of a floating-point dtype, found {}", what,
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
}

}  // namespace

Tensor linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards) {
  check_tokens(x, "linear_of_tokens");
  return apply_to_tokens(x, {weight, bias}, shards, [](const Tensor& own, const std::vector<Tensor>& parameters) {
    return linear(own, parameters[0], parameters[1]);
  });
}

Tensor own_columns_of_all_tokens(const Tensor& x, const TensorShards& shards, std::int64_t parts) {
  check_tokens(x, "own_columns_of_all_tokens");
  const std::int64_t pieces = parts * shards.group().world_size();
  LOCKSTEP_CHECK(parts >= 1 && x.size(-1) % pieces == 0,
                 "[TensorParallel] the {} columns of {} part(s) cannot be divided evenly over {} ranks", x.size(-1),
                 parts, shards.group().world_size());
  return exchanged(x, shards, parts, true);
}

Tensor all_columns_of_own_tokens(const Tensor& x, const TensorShards& shards) {
  check_tokens(x, "all_columns_of_own_tokens");
  LOCKSTEP_CHECK(x.size(-2) % shards.count() == 0,
                 "[TensorParallel] the tokens of {} cannot be divided evenly into {} tensor shards",
                 to_string(x.sizes()), shards.count());
  return exchanged(x, shards, 1, false);
}

Tensor cross_entropy_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& target, const TensorShards& shards,
                               std::int64_t ignore_index) {
  check_tokens(x, "cross_entropy_of_tokens");
  const std::int64_t ranks = shards.group().world_size(), outer = outer_of(x), tokens = x.size(-2);
  LOCKSTEP_CHECK(target.defined() && target.dtype() == kInt64 && target.numel() == outer * tokens * ranks,
                 "[cross_entropy_of_tokens] expected an int64 target of all {} tokens, found {}",
                 outer * tokens * ranks,
                 target.defined() ? fmt::format("{} {}", name(target.dtype()), to_string(target.sizes())) : "nothing");
  shards.check_alike(target, "targets");
  const Tensor own = shards.own_tokens(as_contiguous(target.detach()).view({outer, tokens * ranks, 1}));
  const std::int64_t rows = outer * (tokens / shards.mine().size()), of_shard = tokens / shards.mine().size();
  const auto losses = [ignore_index](const Tensor& input, const Tensor& table, const Tensor& labels) {
    return cross_entropy(linear(input, table), labels, {.reduction = Reduction::none, .ignore_index = ignore_index});
  };
  std::int64_t first = 0;
  const Tensor of_tokens = apply_to_tokens(x.reshape({outer, tokens, x.size(-1)}), {weight}, shards,
                                           [&](const Tensor& part, const std::vector<Tensor>& parameters) {
                                             const Tensor labels = own.narrow(1, first, of_shard).reshape({rows});
                                             first += of_shard;
                                             return losses_in_pieces(part.reshape({rows, x.size(-1)}), parameters[0],
                                                                     labels, parameters[0].size(0), losses)
                                                 .view({outer, of_shard, 1});
                                           });
  return mean_of_counted(gather_tokens(of_tokens, shards), target, ignore_index);
}

}  // namespace lockstep::distributed
