#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::training {

/// Names and values, in order: {"test accuracy", 0.99}.
using Values = std::vector<std::pair<std::string, double>>;

/// What a sink hears before the first step.
struct RunDescription {
  std::int64_t total_steps = 0;  ///< from the beginning to the end
  std::int64_t first_step = 0;   ///< above 0 if the run was resumed
  std::int64_t batch_size = 0;   ///< units a step, over all workers
  std::string unit;              ///< what is counted, in the plural: "images", "tokens"
};

/// One step of training.
struct StepReport {
  std::int64_t step = 0;       ///< from 0
  std::int64_t epoch = 0;      ///< from 0
  double loss = 0.0;           ///< of the global batch
  double learning_rate = 0.0;  ///< that the step was made with
  std::int64_t samples = 0;    ///< of all workers, in units
};

/// What a run has come to.
struct Result {
  Values evaluation;           ///< of the last evaluation; empty if there was none
  std::int64_t steps = 0;      ///< made by this run, without those before a resumption
  double seconds = 0.0;        ///< of training, without evaluations
  double samples_per_s = 0.0;  ///< of all workers, over `seconds`, in units
  std::string weights_sha256;  ///< see nn::weights_sha256()
  std::string state_sha256;    ///< see nn::state_sha256()
  /// The signal that ended the run before its last step; 0: none did.
  int stopped_by = 0;

  /// For main(): 0, or 128 + N if signal N ended the run.
  int exit_status() const { return stopped_by == 0 ? 0 : 128 + stopped_by; }
};

/// Somebody who wants to know how a run goes: a terminal, a file, a server. Only rank 0 has any. Losses come in the
/// order of the steps, but some steps late where they are computed on a device, and all of an epoch before its
/// evaluation.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Before the first step.
  virtual void begin(const RunDescription&) {}
  /// A sentence for a person.
  virtual void message(const std::string&) {}
  /// After each step.
  virtual void step(const StepReport&) {}
  /// After the epoch whose last step was `step`.
  virtual void evaluation(std::int64_t /*step*/, std::int64_t /*epoch*/, const Values&) {}
  /// A checkpoint is about to be written: a run that resumes from it will tell nothing again of what was told so far,
  /// so that has to be where it outlasts this process.
  virtual void checkpoint() {}
  /// The run is over. Throws Error if something could not be written.
  virtual void end(const Result&) {}
};

/// What is printed on stdout: a progress bar, which needs a terminal, or a line each hundred steps; a line for each
/// evaluation; and at the end one that begins with "result:". `others_wait`: other ranks wait for this one, which does
/// not wait for a reader of stdout that stands still, until it is destroyed after its end().
std::unique_ptr<Sink> console(bool progress_bar, bool others_wait = false);

/// A JSON object a line for each step: step, epoch, loss, loss_hex (the loss in full), <unit>_per_s; for the last step
/// before an evaluation also its values, which have a line of their own where a resumed run makes up for an evaluation.
/// A resumed run goes on in the file. Throws Error, now or at the end, if the file cannot be written.
std::unique_ptr<Sink> json_lines(const std::string& path);

}  // namespace lockstep::training
