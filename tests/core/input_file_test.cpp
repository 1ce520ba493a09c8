#include "lockstep/core/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lockstep/core/out_of_memory.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(InputFile, IsARegularFileAndIsNotWaitedFor) {
  const TemporaryPath path;
  ASSERT_EQ(::mkfifo(path.text().c_str(), 0600), 0);
  const std::pair<std::string, std::string> cases[] = {
      {path.text(), "[x] '" + path.text() + "' is a pipe, not a regular file; expected a file on disk"},
      {"/dev/zero", "[x] '/dev/zero' is a device, not a regular file; expected a file on disk"},
      {"/", "[x] '/' is a directory; expected a file"},
      {"/no/such", "[x] cannot open '/no/such': No such file or directory; check the path and its permissions"},
  };
  for (const auto& [name, message] : cases) {
    EXPECT_EQ(error_of([&] { open_input_file(name, "[x]"); }), message);
    EXPECT_EQ(error_of([&] { read_input_file(name, "[x]"); }), message);
    EXPECT_EQ(error_of([&] { InputLines(name, "[x]"); }), message);
  }
}

TEST(InputFile, IsReadToItsEndUpToALimit) {
  const TemporaryPath path;
  for (const std::size_t size : {0u, 1u, 65'535u, 65'536u, 200'001u}) {
    const std::string content(size, 'x');
    write(path.text(), content);
    EXPECT_EQ(open_input_file(path.text(), "").size, size);
    EXPECT_EQ(read_input_file(path.text(), ""), content);
    EXPECT_EQ(read_input_file(path.text(), "", size), content);
    write(path.text(), content + "x");
    const std::string error = error_of([&] { read_input_file(path.text(), "", size); });
    EXPECT_NE(error.find("expected at most"), std::string::npos) << error;
  }
  std::filesystem::resize_file(path.text(), std::uintmax_t{1} << 40);  // of which the disk holds nothing
  EXPECT_EQ(error_of([&] { read_input_file(path.text(), "[x]", 1000); }),
            "[x] '" + path.text() + "' has 1099511627776 bytes; expected at most 1000");
  EXPECT_FALSE(read_input_file("/proc/self/status", "").empty());  // says that it has 0 bytes
}

TEST(InputFile, ThatTakesMoreMemoryThanThereIsIsNamed) {
  EXPECT_EQ(
      error_of([] { with_memory_for("reading 'x'", [] { throw std::bad_alloc(); }); }),
      "out of memory while reading 'x'; free some, or raise the limit of the process (ulimit -v) or the container");
}

TEST(InputLines, AreThoseOfTheFile) {
  const TemporaryPath path;
  const std::string longest(300'000, 'y');
  write(path.text(), "one\n\n" + longest + "\nlast without an end");
  InputLines lines(path.text(), "");
  std::string line;
  for (const std::string& expected : {std::string("one"), std::string(), longest}) {
    ASSERT_TRUE(lines.next(line));
    EXPECT_EQ(line, expected);
    EXPECT_FALSE(lines.at_end());
  }
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "last without an end");
  EXPECT_EQ(lines.number(), 4);
  EXPECT_TRUE(lines.at_end());
  EXPECT_FALSE(lines.next(line));

  write(path.text(), "a\n");
  std::filesystem::resize_file(path.text(), std::uintmax_t{1} << 40);
  InputLines endless(path.text(), "[x]");
  ASSERT_TRUE(endless.next(line));
  EXPECT_NE(error_of([&] { endless.next(line); }).find("line 2 has more than"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
