#include "lockstep/distributed/parallel/lockstep_fingerprint.h"

#include <gtest/gtest.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/core/cpu/gemm/gemm.h"
#include "tests/distributed/ranks.h"

namespace lockstep::distributed {
namespace {

using testing::Link;

TEST(LockstepFingerprint, DifferencesAreShown) {
  const auto errors = testing::errors_of_ranks(
      3, Link::in_process, std::chrono::milliseconds(10'000),
      [](ProcessGroup& group) { check_fingerprint_agreement(group.rank() == 2 ? "cpu B" : "cpu A", group); });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank(s) 2 cannot give the same bits as rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("\"cpu A\""), std::string::npos);
    EXPECT_NE(error.find("\"cpu B\""), std::string::npos);
  }
  EXPECT_NE(lockstep_fingerprint(8).find("8 logical shards; seed"), std::string::npos);
}

TEST(LockstepFingerprint, OfAnyLengthIsComparedWhole) {
  const auto errors =
      testing::errors_of_ranks(2, Link::in_process, std::chrono::milliseconds(10'000), [](ProcessGroup& group) {
        const std::string processor(5000, 'x');
        const char* seed = group.rank() == 0 ? "; seed 1" : "; seed 22";
        check_fingerprint_agreement(processor + seed, group);
      });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("x; seed 1\""), std::string::npos) << error;
    EXPECT_NE(error.find("x; seed 22\""), std::string::npos) << error;
  }
}

TEST(LockstepFingerprint, NamesTheProcessorAndTheSettingsOfLibrariesWhereTheyCount) {
  const bool libraries = cpu::kernels() == cpu::Kernels::libraries;
  EXPECT_EQ(lockstep_fingerprint(8).find("cpu ") != std::string::npos, libraries);
  // Opened for this, if no product has done it.
  EXPECT_EQ(lockstep_fingerprint(8).find("libopenblas") != std::string::npos,
            libraries && std::string_view(cpu::gemm_library()).starts_with("OpenBLAS"));
  const auto counts = [](const char* name) {
    const std::string before = lockstep_fingerprint(8);
    ::setenv(name, "any", 1);
    const std::string with = lockstep_fingerprint(8);
    ::unsetenv(name);
    EXPECT_EQ(lockstep_fingerprint(8), before);
    return with != before;
  };
  for (const char* name : {"ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_CPU_ISA_HINTS"}) EXPECT_EQ(counts(name), libraries);
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"}) EXPECT_TRUE(counts(name)) << name;
}

#if defined(__SSE2__)
// A mode of the processor that nobody lists.
TEST(LockstepFingerprint, KnowsWhatTheProcessorMakesOfTinyNumbers) {
  const std::string before = lockstep_fingerprint(8);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);  // flush to zero, denormals are zero
  const std::string flushed = lockstep_fingerprint(8);
  _mm_setcsr(mode);
  EXPECT_NE(flushed, before);
  EXPECT_EQ(lockstep_fingerprint(8), before);
}
#endif

}  // namespace
}  // namespace lockstep::distributed
