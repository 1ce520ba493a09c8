#include "lockstep/distributed/failure/tell_launcher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lockstep::distributed {

void tell_launcher(std::string_view reason, bool own) noexcept {
  static std::atomic<pid_t> told{0};
  const char* place = std::getenv("LOCKSTEP_FAILURE_PIPE");
  const char* rank = std::getenv("RANK");
  int descriptor = -1;
  unsigned long long inode = 0;
  if (!place || !rank || std::sscanf(place, "%d:%llu", &descriptor, &inode) != 2) return;
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode) || status.st_ino != inode) return;
  if (told.exchange(getpid()) == getpid()) return;
  // A pipe takes so much as one.
  std::array<char, 2048> line;
  const int size = std::snprintf(line.data(), line.size(), "%s %c%.*s", rank, own ? '!' : '~',
                                 static_cast<int>(std::min<std::size_t>(reason.size(), line.size())), reason.data());
  const auto length = std::min(static_cast<std::size_t>(std::max(size, 0)), line.size() - 1);
  std::replace(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(length), '\n', ' ');
  line[length] = '\n';
  [[maybe_unused]] const ssize_t written = write(descriptor, line.data(), length + 1);
}

}  // namespace lockstep::distributed
