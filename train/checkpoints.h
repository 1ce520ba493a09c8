#pragma once

// For .cpp files only.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

/// Note [Files of checkpoints]
/// The newest checkpoint is always the file that the user named, "run.safetensors", whole at any moment. Where several
/// are kept, each is there under its step's number too, "run.step00000050.safetensors": a second name of the same file,
/// which stays when the first is replaced. Of these the last k are kept.

/// The checkpoint files of a run, as rank 0's machine has them.
class Checkpoints {
 public:
  /// `keep`: how many; 1 means the named file alone.
  Checkpoints(std::string path, std::int64_t keep);

  struct Found {
    std::string path;
    std::int64_t step = 0;
    std::string passed_over = {};  ///< of newest(): files that cannot be read, and why; empty: none
  };
  /// The one of the latest step among those that can be read; none if there is no file. Throws Error if there are files
  /// and none of them is a whole checkpoint.
  std::optional<Found> newest() const;

  /// Throws Error if one of a later step than `step`, at which a run begins, is there: it would be overwritten.
  void refuse_later_than(std::int64_t step) const;

  /// After the named file has been written at `step`: gives it its second name, and deletes what is not to be kept.
  /// Throws Error if that cannot be done.
  void written(std::int64_t step) const;

 private:
  std::string numbered(std::int64_t step) const;
  /// Files with a number, by rising step.
  std::vector<Found> history() const;

  std::string path_;
  std::int64_t keep_;
};

}  // namespace lockstep::train
