#include "lockstep/core/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"

namespace lockstep {

void keep_standard_streams_open(StandIn stand_in) {
  for (int number = 0; number <= 2; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free is this one: those below it are open.
    const bool reads = number == 0 || stand_in == StandIn::refuses;
    const int opened = ::open("/dev/null", reads ? O_RDONLY : O_WRONLY);
    LOCKSTEP_CHECK(opened >= 0, "descriptor {} is closed, and /dev/null cannot be opened in its place: {}", number,
                   std::strerror(errno));
    if (opened > 2) ::close(opened);  // another thread has taken the number meanwhile
  }
}

}  // namespace lockstep
