#include <gtest/gtest.h>

#include "tests/support/program_cases.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

class CudaPrograms : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaPrograms, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaPrograms, ::testing::ValuesIn(program_cases::all()),
                         [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
