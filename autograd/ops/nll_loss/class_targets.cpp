#include "lockstep/autograd/ops/nll_loss/class_targets.h"

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/check.h"

namespace lockstep {

ClassRows check_class_targets(const Tensor& scores, const Tensor& target, const Tensor& weight, const char* op) {
  LOCKSTEP_CHECK(scores.defined() && target.defined(), "[{}] {} is undefined", op,
                 scores.defined() ? "target" : "input");
  LOCKSTEP_CHECK(scores.is_floating_point(), "[{}] expected a floating-point input, found {}", op,
                 name(scores.dtype()));
  LOCKSTEP_CHECK(target.dtype() == kInt64,
                 "[{}] expected int64 class indices as target, found {}; cast them with to(kInt64)", op,
                 name(target.dtype()));
  LOCKSTEP_CHECK(scores.dim() >= 1, "[{}] expected an input of shape [C], [N, C] or [N, C, d1, ...], found a scalar",
                 op);
  ClassRows rows;
  Shape expected = scores.sizes();
  const int class_dim = scores.dim() == 1 ? 0 : 1;
  expected.erase(class_dim);
  LOCKSTEP_CHECK(target.sizes() == expected, "[{}] expected a target of shape {} for an input of shape {}, found {}",
                 op, to_string(expected), to_string(scores.sizes()), to_string(target.sizes()));
  rows.classes = scores.size(class_dim);
  if (class_dim == 1) rows.batch = scores.size(0);
  for (int d = 2; d < scores.dim(); ++d) rows.inner *= scores.size(d);
  LOCKSTEP_CHECK(rows.classes > 0 || rows.rows() == 0, "[{}] the input of shape {} has no classes", op,
                 to_string(scores.sizes()));
  LOCKSTEP_CHECK(target.device() == scores.device(), "[{}] the target is on {}, the input on {}; move one with to()",
                 op, to_string(target.device()), to_string(scores.device()));
  if (weight.defined()) {
    LOCKSTEP_CHECK(weight.sizes() == Shape({rows.classes}),
                   "[{}] expected one weight for each of {} classes, found shape {}", op, rows.classes,
                   to_string(weight.sizes()));
    LOCKSTEP_CHECK(weight.dtype() == scores.dtype() && weight.device() == scores.device(),
                   "[{}] expected the weight to be {} on {} like the input, found {} on {}", op, name(scores.dtype()),
                   to_string(scores.device()), name(weight.dtype()), to_string(weight.device()));
    LOCKSTEP_CHECK(!needs_grad(weight), "[{}] the class weight takes no gradient; pass weight.detach()", op);
  }
  return rows;
}

void throw_bad_target(const char* op, std::int64_t row, std::int64_t value, const ClassRows& rows,
                      std::int64_t ignore_index) {
  const std::string where = rows.inner == 1 ? fmt::format("row {}", row)
                                            : fmt::format("sample {}, position {}", row / rows.inner, row % rows.inner);
  detail::throw_error(fmt::format(
      "[{}] target of {} is {}, expected a class index in [0, {}) for {} classes or ignore_index ({}); check "
      "the labels or the model's number of outputs",
      op, where, value, rows.classes, rows.classes, ignore_index));
}

}  // namespace lockstep
