#include "lockstep/core/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"

namespace lockstep {

void keep_standard_streams_open() {
  for (int number = 0; number <= 2; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free is this one: those below it are open.
    const int opened = ::open("/dev/null", number == 0 ? O_RDONLY : O_WRONLY);
    LOCKSTEP_CHECK(opened >= 0, "descriptor {} is closed, and /dev/null cannot be opened in its place: {}", number,
                   std::strerror(errno));
    if (opened > 2) ::close(opened);  // another thread has taken the number meanwhile
  }
}

}  // namespace lockstep
