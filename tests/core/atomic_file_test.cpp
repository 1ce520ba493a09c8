#include "lockstep/core/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/core/error.h"
#include "tests/support/temporary_path.h"

namespace {
bool unnamed_files = true;   // a file system without O_TMPFILE, as some are, if false
unsigned char random_bytes;  // what every byte of the next random number is; 0: as it comes
}  // namespace

// These two take the C library's place in this program.
extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = creates ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (!unnamed_files && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" ssize_t getrandom(void* to, std::size_t bytes, unsigned flags) {
  if (random_bytes == 0) return syscall(SYS_getrandom, to, bytes, flags);
  std::memset(to, random_bytes++, bytes);
  return static_cast<ssize_t>(bytes);
}

namespace lockstep {
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
  const std::string dead = ".a.0123456789abcdef.tmp", alive = ".a.fedcba9876543210.tmp";
  // A user's own, and what is left of a file "a.b".
  std::set<std::string> others{".a.my-notes.tmp", ".a.0123456789ABCDEF.tmp",  ".a..tmp",
                               ".a.tmp",          ".a.0123456789abcde.tmp",   ".a.0123456789abcdefg.tmp",
                               ".b.0.tmp",        ".a.b.0123456789abcdef.tmp"};
  for (const std::string& name : {dead, alive}) std::ofstream(folder.file(name)) << "half";
  for (const std::string& name : others) std::ofstream(folder.file(name)) << "notes";
  const int held = ::open(folder.file(alive).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  write_whole(folder.file("a"), "whole");
  others.insert({"a", alive});
  EXPECT_EQ(folder.names(), others);
  ::close(held);
}

// A name that a file can have is one that can be written, though the temporary file's is longer; and what is left of it
// is found again.
TEST(AtomicFile, WritesUnderTheLongestNames) {
  for (const bool unnamed : {true, false}) {
    const Folder folder;
    unnamed_files = unnamed;
    for (const std::size_t bytes : {230u, 234u, 240u, 255u}) {
      std::string name(bytes - 3, 'x');
      name += "\u20ac";  // three bytes, which are not torn
      write_whole(folder.file(name), "whole");
      EXPECT_TRUE(fs::is_regular_file(folder.file(name))) << bytes;
    }
    EXPECT_EQ(folder.names().size(), 4u);
    if (!unnamed) {
      const pid_t writer = ::fork();
      if (writer == 0) {
        const AtomicFile file(folder.file(std::string(255, 'y')));
        ::raise(SIGKILL);
      }
      ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
      EXPECT_EQ(folder.names().size(), 5u);
      write_whole(folder.file(std::string(255, 'y')), "whole");
      EXPECT_EQ(folder.names().size(), 5u);
    }
    unnamed_files = true;
    EXPECT_THROW(AtomicFile(folder.file(std::string(256, 'x'))), lockstep::Error);
  }
  EXPECT_EQ(shortened("name", 20), "name");
  EXPECT_EQ(shortened(std::string(21, 'a'), 20).size(), 20u);
  std::string other(301, 'a');
  other.back() = 'b';
  EXPECT_NE(shortened(std::string(301, 'a'), 255), shortened(other, 255));
}

// Everybody may write into such a folder, and only its owner replaces a file: rename() at the end would say so.
TEST(AtomicFile, TheRehearsalFindsAFileThatMayNotBeReplaced) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes another user's file";
  const Folder folder;
  ASSERT_EQ(::chmod(folder.path.text().c_str(), 01777), 0);
  std::ofstream(folder.file("theirs")) << "another's";
  AtomicFile(folder.file("theirs")).rehearse();  // root may
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    try {
      AtomicFile(folder.file("own")).rehearse();
    } catch (const lockstep::Error&) {
      ::_exit(2);
    }
    try {
      AtomicFile(folder.file("theirs")).rehearse();
    } catch (const lockstep::Error& error) {
      ::_exit(std::strstr(error.what(), "the file that is there cannot be replaced") ? 0 : 3);
    }
    ::_exit(4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
  EXPECT_EQ(folder.names(), std::set<std::string>{"theirs"});
}

// The kernel follows such links of others nowhere (fs.protected_symlinks): in a folder that everybody may write, they
// say where another user wants this one to write.
TEST(AtomicFile, FollowsNoLinkOfAnotherUserWhereEverybodyMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "makes another user's link";
  const Folder folder;
  const std::string link = folder.file("link");
  const auto is_followed = [&](mode_t mode, uid_t of_folder, uid_t of_link) {
    write_whole(folder.file("victim"), "before");
    fs::remove(link);
    fs::create_symlink("victim", link);
    if (::chmod(folder.path.text().c_str(), mode) != 0 || ::chown(folder.path.text().c_str(), of_folder, 0) != 0 ||
        ::lchown(link.c_str(), of_link, 0) != 0)
      throw std::runtime_error("a link cannot be planted");
    try {
      write_whole(link, "after");
      EXPECT_TRUE(fs::is_symlink(link));
    } catch (const lockstep::Error& error) {
      EXPECT_TRUE(std::strstr(error.what(), ("cannot write " + link + ": it is a link of another user").c_str()))
          << error.what();
    }
    std::ifstream file(folder.file("victim"));
    return std::string(std::istreambuf_iterator<char>(file), {}) == "after";
  };
  constexpr uid_t kOther = 65534;
  EXPECT_FALSE(is_followed(01777, 0, kOther));
  EXPECT_TRUE(is_followed(01777, 0, 0));
  EXPECT_TRUE(is_followed(01777, kOther, kOther));
  EXPECT_TRUE(is_followed(0755, 0, kOther));
  EXPECT_TRUE(is_followed(0777, 0, kOther));
}

// Somebody who may write the folder has guessed the temporary file's name.
TEST(AtomicFile, WritesThroughNothingThatIsPlanted) {
  for (const bool unnamed : {true, false}) {
    const Folder folder;
    const std::string victim = folder.file("victim"), link = ".a.0101010101010101.tmp";
    const std::string other = ".a.0202020202020202.tmp";
    std::ofstream(victim) << "another's";
    fs::create_symlink(victim, folder.file(link));
    std::ofstream(folder.file(other)) << "another's too";
    const int held = ::open(folder.file(other).c_str(), O_RDONLY | O_CLOEXEC);  // so that it is not taken for left over
    ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
    unnamed_files = unnamed;
    random_bytes = 1;
    write_whole(folder.file("a"), "whole");
    EXPECT_GT(random_bytes, 3) << "the planted names were not come to";
    unnamed_files = true;
    random_bytes = 0;
    ::close(held);
    const auto text = [&](const std::string& name) {
      std::ifstream file(folder.file(name));
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_EQ(text("victim"), "another's");
    EXPECT_EQ(text(other), "another's too");
    EXPECT_EQ(text("a"), "whole");
    EXPECT_FALSE(fs::is_symlink(folder.file("a")));
    EXPECT_EQ(folder.names(), (std::set<std::string>{"a", "victim", link, other}));
  }
}

}  // namespace
}  // namespace lockstep
