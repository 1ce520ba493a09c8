#pragma once

// For .cpp files only.

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/parallel/async_checkpoint.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/checkpoint_lock.h"
#include "lockstep/train/checkpoints.h"
#include "lockstep/train/hash_trace.h"
#include "lockstep/train/loss_log.h"
#include "lockstep/train/run.h"
#include "lockstep/train/stop_signal.h"
#include "lockstep/train/update.h"

namespace lockstep::training {
namespace detail {

// Epochs and the place in them are counted in these: other data would not be gone on with where it was left.
inline constexpr const char* kSamples = "samples in the data set";

// Dataset::content(), where the set knows it.
inline constexpr const char* kContent = "samples, by checksum";

}  // namespace detail

struct Run::State {
  State(distributed::TrainingStep& step, optim::Optimizer& optimizer, const data::DataLoader& loader, LossFunction loss,
        RunOptions options);

  // --- run.cpp ---
  void begin();
  /// Tells once of a loss that is no finite number.
  void look_at_loss(const StepReport& report);
  void train_epoch(std::int64_t epoch);
  Tensor train_on(const data::Batch& batch);
  void end_epoch(std::int64_t epoch);
  void evaluate(std::int64_t epoch);
  Result finish();
  void message(const std::string& text);
  int workers() const;

  // --- run_outputs.cpp ---
  void check_paths();
  void trace(const Tensor& value);
  void profile(bool at_end);
  void write_step_trace();
  /// Writes what a training can do without. If that fails the run goes on, and `lost` tells at its end. False then.
  bool try_to_write(const std::function<void()>& write);

  // --- run_ranks.cpp: what ranks of one training have alike ---
  /// What must be the same on all ranks: settings(), and what a resumed run may change.
  nn::Metadata settings_of_ranks();
  /// Throws Error if samplers give ranks other orders of an epoch. A collective.
  void check_order(std::int64_t epoch);
  /// In lockstep mode: throws Error if ranks have come apart. A collective.
  void check_weights();
  /// Where all ranks have called stop(). A collective, so that one that did it alone is named.
  void meet_at_stop();

  // --- run_checkpoint.cpp ---
  void resume();
  void load(const std::string& path, const std::string& file);
  void load_hook(const nn::TrainingState& saved, const std::string& path, const std::string& file);
  std::string checkpoint_to_resume() const;
  nn::Metadata settings() const;
  /// Reads all samples of sets that can tell: once in a run.
  void note_contents();
  /// The learning rates and momenta of step `at`.
  std::string rates(std::int64_t at);
  /// Bytes of the weights, and of what a checkpoint holds beside them; of a mesh's model those of this rank's part.
  std::pair<std::size_t, std::size_t> sizes() const;
  std::string fingerprint() const;
  /// Collective. If it cannot be written: `last`, it is written elsewhere, and `lost` tells; else the run goes on.
  void save_checkpoint(bool last);
  /// Waits for a checkpoint that is written in the background; if it failed, the run goes on.
  void finish_checkpoint();
  void save_weights();
  /// Writes a file at the end of the run, elsewhere if it must be. False, and `lost` tells, unless it is in its place.
  bool write_at_last(const std::string& what, const std::string& path,
                     const std::function<void(const std::string& path)>& write);
  /// A collective: rank 0 does it, and what it throws is thrown on all ranks.
  void on_rank0(const std::function<void()>& body);

  using Clock = std::chrono::steady_clock;

  distributed::TrainingStep& step;
  optim::Optimizer& optimizer;
  const data::DataLoader& loader;
  LossFunction loss;
  RunOptions options;
  Callbacks callbacks;
  distributed::ProcessGroup* group;  // of all processes; null: this one alone
  bool is_rank0;
  Update update;
  Checkpoints checkpoints;
  std::optional<CheckpointLock> checkpoint_lock, weights_lock;  // on rank 0, while train() runs
  distributed::ProcessGroupPtr alone;                           // of `background` where there is no group
  std::optional<distributed::AsyncCheckpoint> background;
  std::int64_t under_way = -1;  // the step of what is written in the background
  bool told_of_room = false;    // that checkpoints gave way to newer ones
  Agreement agreement;
  LossLog losses;
  std::optional<double> last_loss;
  bool told_of_loss = false;
  std::optional<HashTrace> hashes;
  std::optional<StopSignal> signal;
  std::vector<std::unique_ptr<Sink>> sinks;
  std::optional<optim::LRScheduler> schedule;
  std::optional<Evaluation> evaluation;
  Values measured;
  std::int64_t measured_at = -1;  // the step
  std::int64_t total_steps = 0;
  std::int64_t first_step = 0;
  std::int64_t done = 0;     // steps, those before a resumption included
  std::int64_t samples = 0;  // of this run
  double seconds = 0.0;      // of its steps
  bool stopping = false;
  bool met_at_stop = false;
  int stopped_by = 0;
  bool ended = false;
  bool saves_after_epoch = false;  // a checkpoint is due at this step, the last of its epoch
  bool epoch_end_is_due = false;   // a signal came before it
  std::int64_t saved_at = -1;      // the step
  std::int64_t checked_at = -1;    // the step at which ranks' weights were last compared
  Clock::time_point last_save = Clock::now();
  std::string resumed_from;  // the checkpoint, as rank 0 calls it
  std::string run_name;      // see Note [Whose checkpoint]
  std::string job;           // see there; as rank 0's launcher has it
  std::string resumed;       // what to say about it
  std::string content;       // Dataset::content() of the training and of the evaluation; empty: unknown
  std::string evaluation_content;
  std::string lost;  // what could not be written where it should be
};

}  // namespace lockstep::training
