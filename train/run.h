#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/optim/schedule.h"
#include "lockstep/train/sink.h"

namespace lockstep::distributed {
class MeshModel;
}

namespace lockstep::training {

/// What stdout shows of a run.
enum class Progress {
  automatic,  ///< a bar on a terminal, else lines
  bar,
  lines,
  none,
};

/// What is measured on a data set after each epoch: means over its samples.
struct Evaluation {
  std::shared_ptr<const data::Dataset> dataset;  ///< measured in batches of its order
  /// Of the values, such as "test accuracy".
  std::vector<std::string> names;
  /// For each name the sum of its value over the samples of a batch, which is on the module's device. Called without
  /// gradients and with the module in evaluation mode.
  std::function<std::vector<double>(nn::Module& module, const data::Batch& batch)> sums;

  /// The means. With a group, its ranks share the batches, each sample is counted exactly once, and all get the result:
  /// the same bits on any number of ranks. Errors as distributed::evaluate().
  Values measure(nn::Module& module, distributed::ProcessGroup* group) const;
};

/// "test accuracy" and "test loss" (mean cross-entropy) of a module that gives logits [N, classes] for batches with
/// int64 targets [N].
Evaluation classification(std::shared_ptr<const data::Dataset> dataset);

/// How long to train, and what to leave behind. Empty paths: no such file.
struct RunOptions {
  std::int64_t epochs = 1;     ///< passes over the loader's data
  std::int64_t max_steps = 0;  ///< ends earlier; 0: no limit
  /// Mixed precision: kBFloat16, or kFloat16 with a scaled loss. kFloat32: none.
  DType amp = kFloat32;
  DType gather_dtype = kFloat32;  ///< what the step gathers divided parameters as, for checkpoints to compare
  /// Scales the loss if `amp` is kFloat16; for who sets it up otherwise, or follows its scale, as
  /// PowerSgdOptions::loss_scale does. Null: one with the defaults.
  std::shared_ptr<optim::GradScaler> scaler = nullptr;
  distributed::CommunicationHookPtr hook = nullptr;  ///< as given to the step, for its state to be in checkpoints
  bool graph = true;                                 ///< steps as CUDA graphs, where they can be
  double max_grad_norm = 0.0;                        ///< gradients are clipped to this norm; 0: they are not
  /// V, as given to the step; 0: not in lockstep mode. Checkpoints of lockstep runs go on with the same bits or not at
  /// all.
  std::int64_t logical_shards = 0;
  /// A model that is divided over a mesh, of which the step computes a part; must outlive the run. Checkpoints and
  /// hashes are those of the whole. Null: every process has all of it.
  const distributed::MeshModel* mesh = nullptr;
  int workers = 0;                    ///< for messages; 0: as many as there are processes
  std::string unit = "samples";       ///< what throughput counts, in the plural
  std::int64_t units_per_sample = 1;  ///< such as the tokens of a sample, where the unit is "tokens"
  /// What must be the same when the run is resumed, and on all ranks, such as {"model", "lenet"}. Batch size, seeds,
  /// amp, logical shards, the number of samples and Dataset::content() are watched over in any case, and between ranks
  /// also learning rates.
  nn::Metadata settings = {};

  std::string checkpoint = {};        ///< written at the end, on SIGTERM, and as often as the next two say
  std::int64_t checkpoint_every = 0;  ///< steps; 0: off
  double checkpoint_minutes = 0.0;    ///< 0: off
  /// The training goes on while a checkpoint is written, but for the last one (Note [Checkpoints in the background]).
  bool checkpoint_async = false;
  std::int64_t keep_checkpoints = 1;  ///< see Note [Files of checkpoints] in train/checkpoints.h
  /// The checkpoint to go on from; "auto": the newest of `checkpoint`, if there is one; "none". Empty: "auto" under a
  /// launcher that starts workers again after a failure (lockstep-run and torchrun with --max-restarts), else "none".
  /// A worker that has been started again goes on from the newest checkpoint that its job has written in any case.
  std::string resume = {};

  std::string save = {};  ///< the weights, as safetensors, at the end
  /// A JSON line a step. Values of an evaluation have their names, with "evaluation_" before those that a line has
  /// already, such as "loss". A run that goes on from a checkpoint adds to the file, so steps between that and the end
  /// of the run before are there twice.
  std::string metrics = {};
  std::string trace = {};         ///< Chrome trace of the gradients and reductions of one step, on several processes
  std::string trace_hashes = {};  ///< hashes of each step's tensors, for lockstep-bisect
  /// Files that the program itself will write, for the run to try before the first step: what they are, and where; a
  /// path with a slash at its end is a folder.
  std::vector<std::pair<std::string, std::string>> other_outputs = {};
  /// What each of these will take at least, by its path without that slash; of those left out it is not known.
  std::map<std::string, std::size_t> other_bytes = {};
  std::string profile = {};  ///< Chrome trace of the kernels of ten steps; with several ranks a file for each
  Progress progress = Progress::automatic;  ///< what stdout shows
};

/// The training is done, and something of what it has made could not be written where it should be: the message says
/// what, and where it is instead. To train once more would not help. Of a program (Program::main) the rank that throws
/// it prints it, and ends with launcher::kUnwritten.
class UnwrittenError : public Error {
 public:
  using Error::Error;
  /// One that every rank throws alike, of what rank 0 writes for all: rank 0 alone prints it, and the others end well.
  static UnwrittenError of_all_ranks(const std::string& message) {
    UnwrittenError error(message);
    error.of_all_ranks_ = true;
    return error;
  }
  bool is_of_all_ranks() const { return of_all_ranks_; }

 private:
  bool of_all_ranks_ = false;
};

/// Called on every rank; what they call must be collective. Empty ones are passed over. In the order of a run:
struct Callbacks {
  std::function<void(const nn::TrainingState& state)> on_resume;  ///< state.extra has what on_save put there
  std::function<void(std::int64_t epoch)> on_epoch_begin;
  std::function<void(std::int64_t step)> on_step_begin;
  /// Between gradients and update. Steps are then no CUDA graphs.
  std::function<void(std::int64_t step)> on_gradients;
  /// `loss`: of the global batch, one float64 element; reading it waits for the device.
  std::function<void(std::int64_t step, const Tensor& loss)> on_step_end;
  std::function<void(nn::TrainingState& state)> on_save;  ///< before each checkpoint
  std::function<void(std::int64_t epoch, const Values& values)> on_evaluation;
  std::function<void(std::int64_t epoch)> on_epoch_end;
};

/// Note [Run]
/// A whole training: epochs and steps, learning rate, evaluation, checkpoints and resumption, metrics, progress. What
/// it does not know a program adds by callbacks, or writes its own loop over a TrainingStep, which needs none of this.
///
///   training::Run run(step, optimizer, loader, [](nn::Module& net, const data::Batch& part) {
///     return cross_entropy(net(part.x), part.y);
///   }, {.epochs = 3, .checkpoint = "run.safetensors", .checkpoint_minutes = 10});
///   run.set_schedule(optim::CosineAnnealing{.lr = 0.02, .period = run.total_steps()});
///   run.set_evaluation(training::classification(test_set));
///   return run.train().exit_status();
///
/// A run that was stopped and resumed ends with the bits of one that was not: data order, random numbers and learning
/// rate are functions of the step. Files are written by rank 0. Where a checkpoint is asked for, SIGTERM, or a stdout
/// that nobody reads any more (SIGPIPE), lets the step end, writes it and ends the run.
class Run {
 public:
  /// `loss` as for TrainingStep. Step, optimizer and loader must outlive this object; the loader must deliver what the
  /// step expects (rank and world size, or the global batch). Throws Error for options out of range.
  Run(distributed::TrainingStep& step, optim::Optimizer& optimizer, const data::DataLoader& loader, LossFunction loss,
      RunOptions options = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Steps from the beginning to the end, those before a resumption included.
  std::int64_t total_steps() const;

  /// The learning rate by step, and the momentum. Without: what the optimizer has. Errors as optim::LRScheduler.
  void set_schedule(optim::Schedule learning_rate, optim::Schedule momentum = {});
  /// A learning rate for each parameter group of the optimizer.
  void set_schedule(std::vector<optim::Schedule> learning_rates, optim::Schedule momentum = {});
  /// What to measure after each epoch.
  void set_evaluation(Evaluation evaluation);
  /// One more that hears how the run goes; on rank 0 alone.
  void add_sink(std::unique_ptr<Sink> sink);
  /// For the program to fill.
  Callbacks& callbacks();

  /// Trains to the end, once; a collective. Before the first step every output is tried, the checkpoint is looked for
  /// and loaded. Throws Error for a path that cannot be written, two that are the same file, a checkpoint that does not
  /// fit, one that would be overwritten and was not gone on from, or one that another training, still running, writes.
  /// What cannot be written at the end is written elsewhere, and the UnwrittenError, thrown when all else is done, says
  /// where.
  Result train();
  /// train(), then what the program itself writes of the trained model, also where something of the run's own could not
  /// be written; not if a signal ended the run. `write` is called on every rank, and may throw UnwrittenError: the
  /// rank throws one for both when all else is done. Returns the exit status, see Result::exit_status().
  int train_and_write(const std::function<void()>& write);

  /// From a callback, on every rank: this step is the last one.
  void stop();
  /// Whether this process was asked to end, by stop() or by a signal. A callback that takes long looks, and leaves the
  /// rest undone: the run ends, and saves, after it.
  bool is_to_stop() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::training
