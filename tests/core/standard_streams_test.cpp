#include "lockstep/core/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {
namespace {

// What a process with all three closed gets: 0 if each has its number, nothing can be read, and writing goes as asked.
int status_with_streams_closed(StandIn stand_in) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int number : {0, 1, 2}) ::close(number);
    keep_standard_streams_open(stand_in);
    if (::open("/dev/null", O_RDONLY) <= 2) ::_exit(1);  // the next file has another number
    char byte = 0;
    if (::read(0, &byte, 1) != 0) ::_exit(2);
    for (const int number : {1, 2}) {
      const bool taken = ::write(number, &byte, 1) == 1;
      if (taken != (stand_in == StandIn::takes) || (!taken && errno != EBADF)) ::_exit(3);
    }
    ::_exit(0);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, KeepTheirNumbersWhereNobodyGaveThem) {
  EXPECT_EQ(status_with_streams_closed(StandIn::takes), 0);
  EXPECT_EQ(status_with_streams_closed(StandIn::refuses), 0);
}

}  // namespace
}  // namespace lockstep
