#include "lockstep/nn/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/temporary_path.h"

namespace lockstep::nn::detail {
namespace {

namespace fs = std::filesystem;

/// A folder of its own, and the names in it.
struct Folder {
  const lockstep::testing::TemporaryPath path;
  Folder() { fs::create_directory(path.text()); }
  std::string file(const std::string& name) const { return path.text() + "/" + name; }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(path.text())) names.insert(entry.path().filename());
    return names;
  }
};

void write_whole(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

TEST(AtomicFile, AWriterThatIsKilledLeavesNothing) {
  const Folder folder;
  const std::string path = folder.file("a");
  for (int i = 0; i < 3; ++i) {
    const pid_t writer = ::fork();
    if (writer == 0) {
      AtomicFile file(path);
      file.write("half", 4);
      ::raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  write_whole(path, "whole");
  EXPECT_EQ(folder.names(), std::set<std::string>{"a"});
}

TEST(AtomicFile, RemovesWhatDeadWritersLeftAndNothingElse) {
  const Folder folder;
  const std::string dead = ".a.0123456789abcdef.tmp", alive = ".a.fedcba9876543210.tmp", other = ".b.0.tmp";
  for (const std::string& name : {dead, alive, other}) std::ofstream(folder.file(name)) << "half";
  const int held = ::open(folder.file(alive).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  write_whole(folder.file("a"), "whole");
  EXPECT_EQ(folder.names(), (std::set<std::string>{"a", alive, other}));
  ::close(held);
}

}  // namespace
}  // namespace lockstep::nn::detail
