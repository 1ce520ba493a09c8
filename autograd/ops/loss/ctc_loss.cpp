#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/loss/ctc_loss_kernels.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::CtcLossKernel> ctc_loss_kernel{"ctc_loss", detail::ctc_loss_cpu};

/// The gradient was computed with the losses; where these are infinite it is NaN, or 0 with zero_infinity.
class CtcLossBackward final : public Node {
 public:
  bool zero_infinity = false;

  const char* name() const override { return "CtcLossBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor gradient = saved(0) * grads[0].unsqueeze(-1);
    if (!zero_infinity) return {gradient};
    return {where(eq(saved(1), std::numeric_limits<double>::infinity()).unsqueeze(-1), 0.0, gradient)};
  }
};

/// The labels of each sample with blanks between them.
std::vector<detail::CtcSample> make_samples(const Tensor& log_probs, const Tensor& targets,
                                            const std::vector<std::int64_t>& input_lengths,
                                            const std::vector<std::int64_t>& target_lengths, std::int64_t blank) {
  const std::int64_t steps = log_probs.size(0), n = log_probs.size(1), classes = log_probs.size(2);
  LOCKSTEP_CHECK(
      static_cast<std::int64_t>(input_lengths.size()) == n && static_cast<std::int64_t>(target_lengths.size()) == n,
      "[ctc_loss] expected {} lengths of inputs and targets, one a sample, found {} and {}", n, input_lengths.size(),
      target_lengths.size());
  const bool rows = targets.dim() == 2;
  LOCKSTEP_CHECK(targets.dtype() == kInt64 && (targets.dim() == 1 || (rows && targets.size(0) == n)),
                 "[ctc_loss] expected int64 targets [{}, s], or all labels in a row, found {} {}", n,
                 name(targets.dtype()), to_string(targets.sizes()));
  const std::vector<std::int64_t> labels = targets.to_vector<std::int64_t>();
  std::vector<detail::CtcSample> samples;
  std::int64_t passed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t in = input_lengths[static_cast<std::size_t>(i)],
                       out = target_lengths[static_cast<std::size_t>(i)];
    const std::int64_t first = rows ? i * targets.size(1) : passed;
    const std::int64_t room = rows ? targets.size(1) : targets.numel() - passed;
    LOCKSTEP_CHECK(in >= 0 && in <= steps, "[ctc_loss] sample {}: expected an input length in [0, {}], found {}", i,
                   steps, in);
    LOCKSTEP_CHECK(out >= 0 && out <= room, "[ctc_loss] sample {}: expected a target length in [0, {}], found {}", i,
                   room, out);
    detail::CtcSample sample{in, {blank}};
    for (std::int64_t k = 0; k < out; ++k) {
      const std::int64_t label = labels[static_cast<std::size_t>(first + k)];
      LOCKSTEP_CHECK(label >= 0 && label < classes && label != blank,
                     "[ctc_loss] sample {}: expected labels in [0, {}) other than blank, {}, found {} at {}", i,
                     classes, blank, label, k);
      sample.extended.insert(sample.extended.end(), {label, blank});
    }
    passed += out;
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const std::vector<std::int64_t>& input_lengths,
                const std::vector<std::int64_t>& target_lengths, const CtcLossOptions& options) {
  LOCKSTEP_CHECK(log_probs.defined() && targets.defined() && log_probs.dim() == 3 &&
                     (log_probs.dtype() == kFloat32 || log_probs.dtype() == kFloat64),
                 "[ctc_loss] expected float32 or float64 log-probabilities [t, n, classes], found {}",
                 log_probs.defined() ? std::string(name(log_probs.dtype())) + " " + to_string(log_probs.sizes())
                                     : "an undefined tensor");
  LOCKSTEP_CHECK(options.blank >= 0 && options.blank < log_probs.size(2),
                 "[ctc_loss] expected a blank in [0, {}), found {}", log_probs.size(2), options.blank);
  if (is_elsewhere(log_probs))
    return ctc_loss(log_probs.to(kCPU), targets, input_lengths, target_lengths, options).to(log_probs.device());
  const auto samples = make_samples(log_probs, targets, input_lengths, target_lengths, options.blank);
  const bool recording = should_record({&log_probs});
  Tensor losses = empty({log_probs.size(1)}, options_of(log_probs));
  const Tensor gradient = recording ? copy_contiguous(exp(log_probs.detach())) : Tensor();
  ctc_loss_kernel(log_probs)(as_contiguous(log_probs.detach()), samples, losses, gradient);
  if (auto* node = record<CtcLossBackward>(losses, {&log_probs})) {
    node->save(gradient, losses.detach());
    node->zero_infinity = options.zero_infinity;
  }
  if (options.zero_infinity) losses = where(eq(losses, std::numeric_limits<double>::infinity()), 0.0, losses);
  if (options.reduction == Reduction::none) return losses;
  if (options.reduction == Reduction::sum) return sum(losses);
  std::vector<double> lengths;
  for (const std::int64_t length : target_lengths)
    lengths.push_back(static_cast<double>(std::max<std::int64_t>(1, length)));
  return mean(losses / tensor(lengths).to(losses.dtype()).to(losses.device()));
}

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcLossOptions& options) {
  return ctc_loss(log_probs, targets, input_lengths.to_vector<std::int64_t>(), target_lengths.to_vector<std::int64_t>(),
                  options);
}

}  // namespace lockstep
