#include "lockstep/core/cuda/dynamic_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/environment.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::cuda {
namespace {

using ::lockstep::testing::error_of;
using ::lockstep::testing::TemporaryPath;
using Answer = int (*)();
constexpr const char* kFile = "liblockstep_test_plugin.so.7";

// LOCKSTEP_CUDA_LIBRARY_PATH for the lifetime of this.
class SearchPath {
 public:
  explicit SearchPath(const std::string& value) {
    if (const char* text = std::getenv(kName)) before_ = text;
    setenv(kName, value.c_str(), 1);
  }
  ~SearchPath() {
    if (before_.empty())
      unsetenv(kName);
    else
      setenv(kName, before_.c_str(), 1);
  }

 private:
  static constexpr const char* kName = "LOCKSTEP_CUDA_LIBRARY_PATH";
  std::string before_;
};

// The plugin as root/folder/kFile.
void put_plugin(const TemporaryPath& root, const std::string& folder) {
  const std::filesystem::path target = std::filesystem::path(root.text()) / folder;
  std::filesystem::create_directories(target);
  // Tests that were carried to another machine have it elsewhere.
  const char* other = std::getenv("LOCKSTEP_TEST_PLUGIN");
  std::filesystem::copy_file(other ? other : LOCKSTEP_TEST_PLUGIN, target / kFile);
}

TEST(DynamicLibrary, IsFoundInAFolderOfTheVariable) {
  const TemporaryPath root;
  put_plugin(root, "here");
  const SearchPath path(":/nowhere:" + root.text() + "/here");
  DynamicLibrary library(kFile, "the plugin");
  EXPECT_TRUE(library.is_available());
  EXPECT_EQ(library.why_unavailable(), "");
  EXPECT_EQ(library.path(), root.text() + "/here/" + kFile);
  EXPECT_EQ(library.function<Answer>("lockstep_test_answer")(), 42);
}

TEST(DynamicLibrary, IsFoundInATreeOfWheels) {
  const TemporaryPath root;
  put_plugin(root, "nvidia/plugin/lib");
  std::filesystem::create_directories(root.text() + "/nvidia/another");
  const SearchPath path(root.text());
  DynamicLibrary library(kFile, "the plugin");
  EXPECT_EQ(library.function<Answer>("lockstep_test_answer")(), 42);
  EXPECT_EQ(library.path(), root.text() + "/nvidia/plugin/lib/" + kFile);
}

TEST(DynamicLibrary, SaysWhatWasLookedForWhereAndWhatToDo) {
  const SearchPath path("/nowhere/at/all");
  DynamicLibrary library("liblockstep_no_such.so.1", "the plugin 7");
  EXPECT_FALSE(library.is_available());
  const std::string message = error_of([&] { library.function<Answer>("answer"); });
  EXPECT_EQ(message, library.why_unavailable());
  for (const char* part : {"liblockstep_no_such.so.1", "/nowhere/at/all (LOCKSTEP_CUDA_LIBRARY_PATH)",
                           "LD_LIBRARY_PATH", "install the plugin 7", "nvidia/*/lib", "device cpu"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(DynamicLibrary, TellsOfAFileThatCannotBeLoaded) {
  const TemporaryPath root;
  std::filesystem::create_directories(root.text());
  std::ofstream(root.text() + "/" + kFile) << "no library";
  const SearchPath path(root.text());
  DynamicLibrary library(kFile, "the plugin");
  const std::string message = error_of([&] { library.path(); });
  EXPECT_NE(message.find(root.text() + "/" + kFile + ": "), std::string::npos) << message;
}

TEST(DynamicLibrary, NamesAMissingFunction) {
  const TemporaryPath root;
  put_plugin(root, "");
  const SearchPath path(root.text());
  DynamicLibrary library(kFile, "the plugin 7");
  const std::string message = error_of([&] { library.function<Answer>("lockstep_test_question"); });
  for (const char* part : {"lockstep_test_question", kFile, "older than the headers", "install the plugin 7"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(MathMode, Tf32IsOffAndDeterminismOnUnlessAskedFor) {
  const bool tf32 = environment_flag("LOCKSTEP_ALLOW_TF32"), measured = environment_flag("LOCKSTEP_CUDNN_BENCHMARK");
  EXPECT_EQ(allow_tf32(), tf32);
  EXPECT_EQ(deterministic(), !measured);
  set_allow_tf32(true);
  set_deterministic(false);
  EXPECT_TRUE(allow_tf32());
  EXPECT_FALSE(deterministic());
  set_benchmark(true);
  EXPECT_TRUE(benchmark());
  set_deterministic(true);
  EXPECT_FALSE(benchmark()) << "what is measured need not be the same each time";
  set_benchmark(measured);
  set_deterministic(!measured);
  set_allow_tf32(tf32);
}

// The versions that the libraries tell; no device is needed for it.
struct Installed {
  const char* name;
  DynamicLibrary& (*library)();
  std::size_t (*version)(DynamicLibrary& library);
  std::size_t at_least;
};

std::size_t nccl_version(DynamicLibrary& library) {
  int version = 0;
  library.function<int (*)(int*)>("ncclGetVersion")(&version);
  return static_cast<std::size_t>(version);
}

const Installed kInstalled[] = {
    {"cuBLASLt", cublaslt_library,
     [](DynamicLibrary& l) { return l.function<std::size_t (*)()>("cublasLtGetVersion")(); }, 110000},
    {"cuDNN", cudnn_library,
     // A function of a part that libcudnn opens itself.
     [](DynamicLibrary& l) {
       void* descriptor = nullptr;
       const int status = l.function<int (*)(void**)>("cudnnCreateTensorDescriptor")(&descriptor);
       EXPECT_EQ(status, 0) << "a part of cuDNN was not found";
       if (descriptor) l.function<int (*)(void*)>("cudnnDestroyTensorDescriptor")(descriptor);
       return l.function<std::size_t (*)()>("cudnnGetVersion")();
     },
     90000},
    {"NCCL", nccl_library, nccl_version, 20000},
};

class CudaLibrary : public ::testing::TestWithParam<Installed> {};
TEST_P(CudaLibrary, OpensAndTellsItsVersion) {
  DynamicLibrary& library = GetParam().library();
  if (!library.is_available()) GTEST_SKIP() << library.why_unavailable();
  EXPECT_GE(GetParam().version(library), GetParam().at_least) << library.path();
}
INSTANTIATE_TEST_SUITE_P(All, CudaLibrary, ::testing::ValuesIn(kInstalled), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::cuda
