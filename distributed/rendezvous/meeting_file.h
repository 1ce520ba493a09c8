#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/own_process.h"

namespace lockstep::distributed {

/// Note [Meeting without an address]
/// mpirun and srun tell their processes no address to meet at, and the port that torchrun names is its own. On one
/// machine rank 0 then takes any free port of the loopback interface and a fresh token, and writes both into a file
/// that the other ranks wait for: $TMPDIR/lockstep-<uid>/<hash of boot and job>. Nobody but the user can read it or put
/// another in its place (the folder's owner and mode are checked), so the store is closed to other users of the
/// machine, and no two jobs can fall on one port. A file that a killed job left behind names a port where nobody knows
/// its token, so ranks that came before rank 0 read the file again until the store behind it lets them in.

struct MeetingPlace {
  int port = 0;
  std::string token;  ///< empty: the one that the ranks were given
};

/// Where the ranks of a job meet. Throws Error if the folder cannot be made or is not the user's alone.
class MeetingFile {
 public:
  /// `job` names the job among all that this user runs on this machine.
  explicit MeetingFile(std::string_view job);
  /// Removes the file, if this object wrote it and nobody has replaced it.
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const MeetingPlace& place);
  /// None if there is no file, or not a whole one.
  std::optional<MeetingPlace> read() const;

 private:
  std::string path_;
  std::string written_;
  OwnProcess made_in_;
};

/// The content of a meeting file; none for text that is not one.
std::string encode(const MeetingPlace& place);
std::optional<MeetingPlace> decode_meeting_place(std::string_view text);

}  // namespace lockstep::distributed
