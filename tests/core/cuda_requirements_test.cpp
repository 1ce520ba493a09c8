#include <gtest/gtest.h>

#include "lockstep/core/cuda/requirements.h"

namespace lockstep::cuda {
namespace {

TEST(CudaRequirements, ADriverThatIsTooOldIsNamedWithWhatIsNeeded) {
  EXPECT_EQ(
      explain_driver(12040, 13000),
      "the CUDA driver serves CUDA 12.4 at most, and this build was made with CUDA 13.0, which needs driver 580 or "
      "later; update it, or build with CUDA 12");
  EXPECT_EQ(explain_driver(0, 12080),
            "there is no CUDA driver; this build was made with CUDA 12.8, which needs driver 525 or later");
}

TEST(CudaRequirements, AnArchitectureRunsWhatWasMadeForIt) {
  for (const char* made :
       {"90", "90-real", "90-virtual", "80", "80-virtual", "70;90-real", "90a", "native", "all-major"})
    EXPECT_EQ(explain_architecture(made, 9, 0), "") << made;
  EXPECT_EQ(explain_architecture("80-real", 8, 9), "");
  for (const char* made : {"75-real", "100", "90-real", "89-real", "120-virtual", "90a", "80a"})
    EXPECT_NE(explain_architecture(made, 8, 6), "") << made;
}

TEST(CudaRequirements, AnotherArchitectureIsNamedWithWhatToDo) {
  EXPECT_EQ(explain_architecture("80-real;90", 7, 5),
            "its compute capability is 7.5, and this build was made for 80-real, 90; build with "
            "-DLOCKSTEP_CUDA_ARCHITECTURES=75");
}

}  // namespace
}  // namespace lockstep::cuda
