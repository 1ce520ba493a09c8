// scripts/get_mnist.sh, run as its users run it, with folders as mirrors.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "lockstep/data/mnist.h"
#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Outcome {
  int status = -1;
  std::string output;  // stdout and stderr
};

Outcome run_script(const std::string& arguments) {
  const std::string command = "bash '" LOCKSTEP_SOURCE_DIR "/scripts/get_mnist.sh' " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  Outcome outcome;
  std::array<char, 4096> buffer;
  for (std::size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string mirror(const std::filesystem::path& folder) {
  return "file://" + folder.string();
}

TEST(GetMnist, SaysInOneLineThatNoMirrorAnswered) {
  TempDir dir;
  const ScopedEnv data_root("LOCKSTEP_DATA", nullptr);
  const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", "file:///nonexistent file:///neither");
  const Outcome outcome = run_script("--dir " + (dir / "mnist").string());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  EXPECT_NE(outcome.output.find("no mirror gave train-images-idx3-ubyte"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("file:///neither"), std::string::npos) << outcome.output;
  EXPECT_TRUE(names_in(dir / "mnist").empty()) << "nothing half-done is left";
}

TEST(GetMnist, RefusesFilesWithAnotherContent) {
  TempDir dir;
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    write_file(dir / "mirror" / (std::string(name) + ".gz"), gzip(idx_bytes({10}, ramp(10))));
  const ScopedEnv data_root("LOCKSTEP_DATA", (dir / "mirror").c_str());
  const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", mirror(dir / "mirror").c_str());
  const Outcome outcome = run_script("--dir " + (dir / "mnist").string());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.output.find("has a wrong checksum"), std::string::npos) << outcome.output;
  EXPECT_TRUE(names_in(dir / "mnist").empty());
}

TEST(GetMnist, RefusesUnknownFlagsAndFoldersItCannotMake) {
  EXPECT_EQ(run_script("--frobnicate").status, 2);
  EXPECT_EQ(run_script("--dir").status, 2);
  TempDir dir;
  write_file(dir / "file", {1});
  const Outcome outcome = run_script("--dir " + (dir / "file" / "mnist").string());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.output.find("cannot make the folder"), std::string::npos) << outcome.output;
}

TEST(GetMnist, PutsTheRealFilesInPlaceAndRepairsThem) {
  if (!data::has_mnist()) GTEST_SKIP() << "no MNIST here; run scripts/get_mnist.sh or set LOCKSTEP_DATA";
  const std::filesystem::path source = data::mnist()->image_file().parent_path();
  TempDir dir;
  const std::string arguments = "--dir " + (dir / "mnist").string();
  // Once copied from LOCKSTEP_DATA, then from there as from a mirror.
  {
    const ScopedEnv data_root("LOCKSTEP_DATA", source.c_str());
    const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", "file:///nonexistent");
    const Outcome outcome = run_script(arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
  }
  EXPECT_EQ(data::mnist(dir / "mnist")->size(), 60000);
  EXPECT_EQ(data::mnist(dir / "mnist", {.train = false})->size(), 10000);
  const std::vector<std::string> names = names_in(dir / "mnist");
  EXPECT_EQ(names.size(), 4u);

  const ScopedEnv data_root("LOCKSTEP_DATA", nullptr);
  {
    const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", "file:///nonexistent");
    EXPECT_EQ(run_script(arguments).status, 0) << "valid files need no mirror";
  }
  const std::filesystem::path labels = dir / "mnist" / names[1];
  Bytes damaged = read_file(labels);
  damaged[damaged.size() / 2] ^= 4;
  write_file(labels, damaged);
  {
    const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", "file:///nonexistent");
    EXPECT_EQ(run_script(arguments).status, 1) << "a damaged file is noticed";
  }
  if (!std::filesystem::exists(source / "t10k-labels-idx1-ubyte.gz"))
    GTEST_SKIP() << "the set here is not compressed, and cannot serve as a mirror";
  const ScopedEnv mirrors("LOCKSTEP_MNIST_MIRRORS", ("file:///nonexistent " + mirror(source)).c_str());
  EXPECT_EQ(run_script(arguments).status, 0);
  EXPECT_EQ(names_in(dir / "mnist").size(), 4u);
  EXPECT_EQ(data::mnist(dir / "mnist", {.train = false})->size(), 10000);
}

}  // namespace
}  // namespace lockstep::testing
