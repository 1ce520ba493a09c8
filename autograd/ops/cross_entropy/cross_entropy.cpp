#include "lockstep/autograd/ops/cross_entropy/cross_entropy.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cross_entropy/cross_entropy_kernels.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr KernelTable<CrossEntropyKernel> cross_entropy_kernel{"cross_entropy", cross_entropy_cpu,
                                                               LOCKSTEP_CUDA_KERNEL(cross_entropy_cuda)};
constexpr KernelTable<CrossEntropyBackwardKernel> cross_entropy_backward_kernel{
    "cross_entropy backward", cross_entropy_backward_cpu, LOCKSTEP_CUDA_KERNEL(cross_entropy_backward_cuda)};

/// The same memory with the classes, dimension 1 of more than two, as the last dimension.
Tensor classes_last(const Tensor& tensor) {
  if (tensor.dim() <= 2) return tensor;
  Shape sizes = tensor.sizes(), strides = tensor.strides();
  sizes.erase(1);
  sizes.push_back(tensor.sizes()[1]);
  strides.erase(1);
  strides.push_back(tensor.strides()[1]);
  return tensor.as_strided(sizes, strides, tensor.offset());
}

class CrossEntropyBackward final : public Node {
 public:
  const char* name() const override { return "CrossEntropyBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(1);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &target = saved(1), &weight = saved(2);
    const Tensor &normalizers = saved(3), &total_weight = saved(4);
    Tensor grad_rows = empty(x.sizes(), options_of(x));
    cross_entropy_backward_kernel(x)(as_contiguous(grads[0]), x, target, weight, normalizers, total_weight, grad_rows,
                                     problem);
    if (sizes.dim() <= 2 || problem.planes || problem.rows.inner <= 1) {
      result[0] = std::move(grad_rows);
    } else {
      result[0] = empty(sizes, options_of(x));
      copy_values(grad_rows, classes_last(result[0]));
    }
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const bool as_given = sizes.dim() <= 2 || problem.planes || problem.rows.inner <= 1;  // else x was turned
    if (!as_given) return Node::apply_recorded(std::move(grads));
    // A row's target distribution, as in Note [Smoothed targets].
    const int dim = sizes.dim() == 1 ? 0 : 1;
    const Tensor x = saved_input(0, 0), target = saved(1).unsqueeze(dim);
    const Tensor weight = saved(2).defined() ? saved(2) : ones({sizes[dim]}, options_of(x));
    const Tensor counts = ne(target, problem.ignore_index), named = where(counts, target, 0);
    Shape column = Shape::filled(sizes.dim(), 1);
    column[dim] = sizes[dim];
    const double even = problem.label_smoothing / static_cast<double>(problem.rows.classes);
    const Tensor sharp =
        weight.index_select(0, named.reshape({-1})).view(named.sizes()) * (1.0 - problem.label_smoothing);
    const Tensor share = scatter_add(as_contiguous((weight * even).view(column).expand(sizes)), dim, named, sharp);
    Tensor grad = grads[0];
    if (problem.reduction == Reduction::mean) {
      const Tensor total = saved(4).to(x.dtype());
      grad = grad / where(total == 0.0, 1.0, total);  // 0: nothing counts, and only the loss is 0 / 0
    }
    if (problem.reduction == Reduction::none) grad = grad.unsqueeze(dim);
    return {where(counts, grad * (softmax(x, dim) * sum(share, {dim}, true) - share), 0)};
  }

  Shape sizes;
  CrossEntropyProblem problem;
};

/// For targets that are a probability for each class.
Tensor of_probabilities(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  LOCKSTEP_CHECK(logits.defined() && logits.dim() > 0 && logits.sizes() == target.sizes(),
                 "[cross_entropy] a {} target holds a probability for each class; expected it of the input's shape {}, "
                 "found {}; for class indices convert the target with to(kInt64)",
                 name(target.dtype()), logits.defined() ? to_string(logits.sizes()) : "(undefined)",
                 to_string(target.sizes()));
  const int dim = logits.dim() == 1 ? 0 : 1;
  const std::int64_t classes = logits.size(dim);
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.sizes() == Shape({classes}),
                 "[cross_entropy] expected a weight of shape [{}], found {}", classes,
                 to_string(options.weight.sizes()));
  Tensor share = target;
  if (options.label_smoothing > 0)
    share = share * (1.0 - options.label_smoothing) + options.label_smoothing / static_cast<double>(classes);
  if (options.weight.defined()) {
    Shape sizes = Shape::filled(logits.dim(), 1);
    sizes[dim] = classes;
    share = share * options.weight.view(sizes);
  }
  const Tensor losses = -(share * log_softmax(logits, dim)).sum({dim});
  if (options.reduction == Reduction::none) return losses;
  return options.reduction == Reduction::sum ? losses.sum() : losses.sum() / static_cast<double>(losses.numel());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return cross_entropy(x, target, options); }, logits);
  if (target.defined() && target.is_floating_point()) return of_probabilities(logits, target, options);
  const ClassRows rows = check_class_targets(logits, target, options.weight, "cross_entropy");
  LOCKSTEP_CHECK(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0,
                 "[cross_entropy] label_smoothing is {}, expected a value in [0, 1]", options.label_smoothing);
  const bool planes = logits.device().is_cpu() && rows.inner > 1 && rows.classes > 0 && rows.classes <= kMostPlanes;
  const CrossEntropyProblem problem{rows, options.reduction, options.ignore_index, options.label_smoothing, planes};
  const Tensor x = as_contiguous(planes || rows.inner <= 1 ? logits : classes_last(logits));
  const Tensor targets = as_contiguous(target);
  const Tensor weight = options.weight.defined() ? as_contiguous(options.weight) : Tensor();
  const Device device = logits.device();
  const Tensor loss = empty(options.reduction == Reduction::none ? target.sizes() : Shape{}, options_of(logits));
  const Tensor normalizers =
      empty({rows.rows(), 2}, {.dtype = logits.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = device});
  const Tensor total_weight = empty({}, {.dtype = kFloat64, .device = device});
  cross_entropy_kernel(x)(x, targets, weight, loss, normalizers, total_weight, problem);
  if (auto* node = record<CrossEntropyBackward>(loss, {&logits})) {
    node->save(x, targets, weight, normalizers, total_weight);
    node->sizes = logits.sizes();
    node->problem = problem;
  }
  return loss;
}

}  // namespace lockstep
