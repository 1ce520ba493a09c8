// Outputs of a column-parallel layer, made whole.

#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "lockstep/distributed/tensor_parallel/tensor_parts.h"

namespace lockstep::distributed {
namespace {

class GatherColumnsBackward final : public Node {
 public:
  const char* name() const override { return "GatherColumnsBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};
    return {division.own_part(grads[0], *shards)};
  }

  const TensorShards* shards = nullptr;
  TensorDivision division;
};

}  // namespace

Tensor gather_columns(const Tensor& own, const TensorShards& shards, std::int64_t columns) {
  LOCKSTEP_CHECK(own.defined() && own.dim() >= 1, "[gather_columns] expected this rank's columns [*, own], found {}",
                 own.defined() ? to_string(own.sizes()) : "an undefined tensor");
  const TensorDivision division{.dim = own.dim() - 1,
                                .size = shards.size_of_whole(own.size(-1), columns, "gather_columns")};
  static const OperationLabel label("outputs of a divided layer");
  const LabelScope scope(label);
  const Tensor out = division.whole(own, shards);
  if (auto* node = record<GatherColumnsBackward>(out, {&own})) {
    node->shards = &shards;
    node->division = division;
  }
  return out;
}

}  // namespace lockstep::distributed
