// What keeps two trainings from one checkpoint, where others have a hand in its file.

#include "lockstep/train/checkpoint_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/posix.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace {
int lock_error = 0;  // what stat() of a lock's file fails with; 0: it does not
}  // namespace

// Takes the C library's place in this program: a file system that does not answer.
extern "C" int stat(const char* path, struct stat* found) noexcept {
  if (lock_error != 0 && std::string_view(path).ends_with(".lock")) {
    errno = lock_error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, found, 0));
}

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

class Lock : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_ / name; }

 private:
  testing::TempDir folder_;
};

// Somebody removes the file, and another training makes its own: the first one's end must not take that away.
TEST_F(Lock, OfAnotherTrainingOutlivesTheEndOfThisOne) {
  auto first = std::make_unique<CheckpointLock>(file("c"));
  fs::remove(file(".c.lock"));
  const CheckpointLock second(file("c"));
  first.reset();
  EXPECT_NE(error_of([&] { CheckpointLock(file("c")); }).find("is the checkpoint of another training"),
            std::string::npos);
}

TEST_F(Lock, IsHeldThoughItsFileCannotBeLookedAt) {
  for (const int error : {EIO, ESTALE, ENOENT}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      lock_error = error;
      bool refused = false;
      try {
        const CheckpointLock lock(file("c"));
        const FileDescriptor again(::open(file(".c.lock").c_str(), O_RDWR | O_CLOEXEC));
        if (::flock(again.get(), LOCK_EX | LOCK_NB) == 0) ::_exit(2);
      } catch (const Error& refusal) {
        refused = std::string_view(refusal.what()).find("is taken away again and again") != std::string_view::npos;
        if (!refused) ::_exit(3);
      }
      // That it is another file every time would be for ever, and is none of the system's errors.
      ::_exit(refused == (error == ENOENT) ? 0 : 4);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "errno " << error << ": status " << WEXITSTATUS(status) << ", signal " << WTERMSIG(status);
  }
}

// Anybody may have written the file, where its folder is everybody's.
TEST_F(Lock, TellsOfItsHolderInPrintableText) {
  std::ofstream(file(".c.lock")) << "process 7 on \x1b[2Jhost\n\x9b" << std::string(1000, 'x');
  const FileDescriptor held(::open(file(".c.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  const std::string error = error_of([&] { CheckpointLock(file("c")); });
  EXPECT_NE(error.find("still running (process 7 on ?[2Jhost??xxx"), std::string::npos) << error;
  EXPECT_TRUE(std::all_of(error.begin(), error.end(), [](unsigned char c) { return std::isprint(c); })) << error;
  EXPECT_LT(error.size(), 500u) << error;
}

}  // namespace
}  // namespace lockstep::training
