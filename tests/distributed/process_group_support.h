#pragma once

// What the tests of a process group's operations share: worlds of every size on every transport, and values of which
// every sum is exact.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {

using distributed::ProcessGroup;

/// Odd ones, on both sides of every limit at which an algorithm changes. A world of many threads has less to carry.
inline std::vector<std::int64_t> sizes_for(const ProcessGroup& group) {
  return {1, 7, 10, 1024, group.world_size() > 8 ? 10'007 : 100'003};
}

/// Number of ranks, and how they talk.
struct Case {
  int world_size;
  Link link;
};

class ProcessGroupTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().link == Link::gloo && !distributed::gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  void run(const std::function<void(ProcessGroup&)>& body) { run_ranks(GetParam().world_size, GetParam().link, body); }
};

inline auto all_cases() {
  return ::testing::Values(Case{2, Link::in_process}, Case{3, Link::in_process}, Case{4, Link::in_process},
                           Case{19, Link::in_process}, Case{2, Link::gloo}, Case{3, Link::gloo}, Case{4, Link::gloo},
                           Case{2, Link::shm}, Case{3, Link::shm}, Case{4, Link::shm}, Case{19, Link::shm});
}

inline std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return name_of(info.param.link) + std::to_string(info.param.world_size);
}

/// Element i on rank r: small integers, so that every sum is exact.
inline double element(int rank, std::int64_t i) {
  return static_cast<double>((rank + 1) * (i % 5 + 1));
}

inline Tensor filled(std::int64_t size, DType dtype, const std::function<double(std::int64_t)>& value) {
  Tensor wide = empty({size}, {.dtype = kFloat64});
  for (std::int64_t i = 0; i < size; ++i) wide.data<double>()[i] = value(i);
  return cast_values(wide, dtype);
}

inline Tensor input_of(const ProcessGroup& group, std::int64_t size, DType dtype = kFloat32) {
  return filled(size, dtype, [&](std::int64_t i) { return element(group.rank(), i); });
}

/// Sum of (r + 1) over all ranks.
inline double rank_sum(const ProcessGroup& group) {
  return group.world_size() * (group.world_size() + 1) / 2.0;
}

inline void expect_values(const Tensor& tensor, const std::function<double(std::int64_t)>& value, const char* what) {
  const std::vector<double> actual = tensor.to_vector<double>();
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(actual[i], value(static_cast<std::int64_t>(i))) << what << ", element " << i << " of " << actual.size();
}

}  // namespace lockstep::testing
