#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/distributed/parallel/reduction/no_sync.h"
#include "lockstep/distributed/parallel/step.h"

namespace lockstep::distributed {

/// Trains one module on every rank of a group, each rank on its own samples, with gradients averaged during backward():
/// PyTorch's idiom, `loss = f(ddp(x)); optimizer.zero_grad(); loss.backward();`, with the semantics of
/// torch.nn.parallel.DistributedDataParallel. A face of TrainingStep, whose step, which knows about the ranks so that
/// the loop need not, it also has:
///
///   Tensor loss = ddp.step(batch, [&](const data::Batch& part) {
///     return cross_entropy(model(part.x), part.y);
///   });
///   optimizer.step();
///
/// A hook of Tensor::register_post_accumulate_grad_hook on a parameter is called with the average, at the end of the
/// backward() that averages, on every rank; so it may step an optimizer. Where gradients are divided it is an Error.
class DistributedDataParallel {
 public:
  /// As TrainingStep: a collective that compares the ranks' modules and gives all of them rank 0's values. The module
  /// must outlive this object.
  DistributedDataParallel(nn::Module& module, ProcessGroupPtr group, TrainingStepOptions options = {});
  DistributedDataParallel(nn::Module& module, const Job& job, TrainingStepOptions options = {});

  /// The module's forward() on this rank's samples. Dropout draws as the thread does: alike on ranks of one seed.
  Tensor operator()(Tensor x) { return step_.forward(std::move(x)); }

  /// The same for a model that takes or returns something else than a Tensor: what `forward`, which calls the module,
  /// returns.
  ///
  ///   const auto [logits, state] = ddp([&] { return net(tokens, mask); });
  template <std::invocable F>
  std::invoke_result_t<F&> operator()(F&& forward) {
    std::optional<std::invoke_result_t<F&>> out;
    forward_by([&] {
      out.emplace(forward());
      if constexpr (std::is_same_v<std::invoke_result_t<F&>, Tensor>) return out->requires_grad();
      return true;
    });
    return std::move(*out);
  }

  /// TrainingStep::operator(). The loss is a function of the module and a part, or of a part alone.
  template <typename Loss>
  Tensor step(const data::Batch& batch, Loss&& loss) {
    return step_(batch, of_part(loss));
  }

  /// TrainingStep::join():
  ///
  ///   while (const auto loss = ddp.join_step(next_batch(), f)) optimizer.step();
  template <typename Loss>
  std::optional<Tensor> join_step(const data::Batch& own, Loss&& loss) {
    return step_.join(own, of_part(loss));
  }

  /// Runs a training loop in PyTorch's idiom in which ranks may run out of samples at different times; the counterpart
  /// of torch's `with ddp.join():`. The loop calls `ddp(x)` with recording on once for each backward(), and x's
  /// dimension 0 counts the samples that its loss is the mean of: the averages are weighted by them. When a rank's loop
  /// has ended, the rank takes part with gradients of zero until those of all ranks have, and calls `keep_up`, such as
  /// `[&] { optimizer.step(); }`, after each average. Then all ranks get weights and buffers of one that was last;
  /// without `keep_up`, the optimizer's state stays behind where a loop ended early. Throws Error with synchronised
  /// batch norm.
  void join(const std::function<void()>& loop, const std::function<void()>& keep_up = nullptr);

  /// While the returned guard lives, backward() only accumulates locally. The first backward() after it averages the
  /// sum. A step(), which begins by clearing the gradients, averages nothing meanwhile (local SGD; all ranks must
  /// make as many, for they agree on batches and count losses together), and nothing of it is left to the next; to
  /// average over several batches, give step() all of them and `accumulate`.
  [[nodiscard]] NoSync no_sync();

  nn::Module& module() { return step_.module(); }  ///< the one that it was made with
  ProcessGroup& process_group();                   ///< the ranks that it averages over
  /// The step itself, such as for a CapturedStep.
  TrainingStep& training_step() { return step_; }
  /// True if it was made with logical shards.
  bool is_lockstep() const { return step_.is_lockstep(); }
  /// When gradients and reductions of the last step happened.
  const ReducerTrace& trace() const { return *step_.trace(); }
  /// Names of the parameters that got no gradient on this rank in the last step and counted as zero.
  std::vector<std::string> unused_parameters() const;
  /// Names of the parameters that no rank used: they have no gradient. The first step that leaves some out says so in a
  /// line on rank 0's stderr, once for a model in a process.
  std::vector<std::string> unused_everywhere() const;

 private:
  template <typename Loss>
  static LossFunction of_part(Loss& loss) {
    if constexpr (std::is_invocable_v<Loss&, nn::Module&, const data::Batch&>)
      return std::ref(loss);
    else
      return [&loss](nn::Module&, const data::Batch& part) -> LossValue { return loss(part); };
  }

  void forward_by(const std::function<bool()>& compute);

  TrainingStep step_;
};

}  // namespace lockstep::distributed
