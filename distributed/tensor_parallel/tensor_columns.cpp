// Outputs of a column-parallel layer, made whole.

#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"

namespace lockstep::distributed {
namespace {

/// Columns [begin, begin + count) of a contiguous [*, width]; not copied.
Tensor columns_of(const Tensor& whole, std::int64_t begin, std::int64_t count) {
  Shape sizes = whole.sizes();
  const Shape strides = contiguous_strides(sizes);
  sizes[sizes.dim() - 1] = count;
  return whole.as_strided(sizes, strides, whole.offset() + begin);
}

class GatherColumnsBackward final : public Node {
 public:
  const char* name() const override { return "GatherColumnsBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};
    return {copy_contiguous(columns_of(as_contiguous(grads[0].detach()), shards->group().rank() * columns, columns))};
  }

  const TensorShards* shards = nullptr;
  std::int64_t columns = 0;
};

}  // namespace

Tensor gather_columns(const Tensor& own, const TensorShards& shards) {
  LOCKSTEP_CHECK(own.defined() && own.dim() >= 1, "[gather_columns] expected [*, columns / ranks], found {}",
                 own.defined() ? to_string(own.sizes()) : "an undefined tensor");
  const int ranks = shards.group().world_size();
  const std::int64_t columns = own.size(-1);
  Shape sizes = own.sizes();
  sizes[sizes.dim() - 1] = columns * ranks;
  const Tensor out = empty(sizes, options_of(own));
  if (out.numel() > 0) {
    const Tensor mine = as_contiguous(own.detach()), all = empty({own.numel() * ranks}, options_of(own));
    static const OperationLabel label("outputs of a divided layer");
    const LabelScope scope(label);
    shards.group().all_gather(all, mine)->wait();
    for (int r = 0; r < ranks; ++r)
      copy_values(all.as_strided(own.sizes(), contiguous_strides(own.sizes()), r * own.numel()),
                  columns_of(out, r * columns, columns));
  }
  if (auto* node = record<GatherColumnsBackward>(out, {&own})) {
    node->shards = &shards;
    node->columns = columns;
  }
  return out;
}

}  // namespace lockstep::distributed
