#pragma once

// For .cpp files only.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/train/output.h"

namespace lockstep::training {

/// Note [Files of checkpoints]
/// The newest checkpoint is always the file that the user named, "run.safetensors", whole at any moment. Where several
/// are kept, each is there under its step's number too, "run.step00000050.safetensors": a second name of the same file,
/// which stays when the first is replaced. Of these the last k are kept. The next is written before the oldest goes, so
/// that a disk has to hold k + 1, which is tried before the first step. Should it be fuller later, older ones give way:
/// a newer checkpoint is worth more than an older one, and the last whole one never goes before the next is written.

/// Note [Whose checkpoint]
/// A run draws a name when it begins anew, and writes it into its checkpoints (kRun). One that goes on from its own
/// checkpoint, or from an older one under its step's number, is the same run; one that goes on from elsewhere is a new
/// one. So two checkpoints with the same name are two moments of one training, and the file that a run will write may
/// be replaced if it holds an earlier moment of what the run goes on from, and only then. A launcher gives all
/// processes of a job, however often they are started, one name too, which stands beside it (kJob): workers that are
/// started again tell by it what their predecessors have written.

/// Under these names in nn::TrainingState::extra.
inline constexpr const char* kRun = "run";
inline constexpr const char* kJob = "job";

/// The checkpoint files of a run, as rank 0's machine has them.
class Checkpoints {
 public:
  /// `keep`: how many; 1 means the named file alone.
  Checkpoints(std::string path, std::int64_t keep);

  struct Found {
    std::string path;
    std::int64_t step = 0;
    std::string run = {};  ///< see Note [Whose checkpoint]; empty: an older version wrote it
    std::string job = {};
    std::string passed_over = {};  ///< of newest(): files that cannot be read, and why; empty: none
  };
  /// The one of the latest step among those that can be read; none if there is no file. Throws Error if there are files
  /// and none of them is a whole checkpoint.
  std::optional<Found> newest() const;
  /// The same of those alone that the job has written, which is not empty.
  std::optional<Found> newest_of_job(const std::string& job) const;
  /// Whether `path` is one of these files.
  bool contains(const std::string& path) const;

  /// For a run that begins at `step` and has gone on from a checkpoint of the run `run`; empty: from none. Throws Error
  /// if there is a file that it would overwrite and has not gone on from. `own`: it went on from one of these files.
  void refuse_others(std::int64_t step, const std::string& run, bool own) const;
  /// Throws Error if files with a number, which are to be kept, would have longer names than files can have.
  void check_names() const;

  /// What a run will write that writes `count` checkpoints of so many bytes, one after the other.
  std::vector<Output> outputs(std::int64_t count, std::size_t bytes) const;
  /// Before the named file is written at `step`: where the disk has no room for another as large, deletes files with a
  /// number, the oldest first, until it has, but never the last of them. Returns those that it has deleted.
  std::vector<std::string> make_room(std::int64_t step) const;

  /// After the named file has been written at `step`: gives it its second name, and deletes what is not to be kept.
  /// Throws Error if that cannot be done.
  void written(std::int64_t step) const;

 private:
  std::string numbered(std::int64_t step) const;
  /// The step that a file's name says; none if it is not that of a file with a number.
  std::optional<std::int64_t> step_in(std::string_view name) const;
  /// Files with a number, by rising step.
  std::vector<Found> history() const;
  /// Those of them that are checkpoints, of steps up to this one.
  std::vector<Found> history_until(std::int64_t step) const;
  std::optional<Found> newest_of(const std::function<bool(const Found&)>& counts) const;

  std::string path_;
  std::int64_t keep_;
};

}  // namespace lockstep::training
