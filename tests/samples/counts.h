#pragma once

// How many of PyTorch's samples agree, and where that stands.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "lockstep/core/dtype.h"
#include "tests/support/golden.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {

enum class Status : std::uint8_t { agrees, refused, differs, accepted, not_expressible };
inline constexpr const char* kStatusNames[] = {"agrees", "refused", "differs", "accepted", "not expressible"};

inline const char* const all_samples = std::getenv("LOCKSTEP_TEST_SAMPLES");

inline std::string samples_folder() {
  return all_samples ? all_samples : golden_folder() + "/samples";
}

/// Where the table of differences is.
inline std::string path_of_table() {
  return std::filesystem::path(golden_folder()).parent_path().parent_path() / "docs/pytorch_operations.md";
}

/// 12345 as "12,345".
inline std::string with_commas(int count) {
  std::string text = std::to_string(count);
  for (std::size_t left = text.size(); left > 3;) text.insert(left -= 3, ",");
  return text;
}

/// Counts by kind of sample and status, printed at the end and compared with what stands in
/// docs/pytorch_operations.md.
class Counts : public ::testing::Environment {
 public:
  void add(const std::string& kind, DType dtype, Status status) {
    const bool exact = dtype == kFloat32 || dtype == kFloat64;
    const std::string group = kind == "error"     ? "must be refused"
                              : kind == "extreme" ? "extremes"
                              : exact             ? "float32 and float64"
                                                  : "half types, integers, bool";
    ++counts_[group][static_cast<std::size_t>(status)];
  }
  void TearDown() override {
    for (const auto& [group, counts] : counts_) {
      std::cout << "[ SAMPLES  ] " << group << ":";
      for (std::size_t i = 0; i < counts.size(); ++i)
        if (counts[i] != 0) std::cout << " " << counts[i] << " " << kStatusNames[i];
      std::cout << "\n";
    }
    const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
    if (all_samples || test_device().is_cuda() || tests.test_to_run_count() != tests.total_test_count()) return;
    std::ifstream file(path_of_table());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for (const auto& [group, counts] : counts_) {
      const std::string wanted = group == "must be refused" ? of_refusals(counts) : row(group, counts);
      EXPECT_NE(text.find(wanted), std::string::npos) << "docs/pytorch_operations.md should say: " << wanted;
    }
  }

 private:
  using Numbers = std::array<int, 5>;

  static std::string row(const std::string& group, const Numbers& counts) {
    const int all = counts[0] + counts[1] + counts[2];
    char share[16];
    std::snprintf(share, sizeof(share), "%.1f", 100.0 * counts[0] / all);
    return "| " + group + " | " + with_commas(counts[0]) + " (" + share + " %) | " + with_commas(counts[1]) + " | " +
           with_commas(counts[2]) + " |";
  }
  static std::string of_refusals(const Numbers& counts) {
    return "Of the calls that PyTorch refuses " + std::to_string(counts[3]) + " are taken here; " +
           std::to_string(counts[4]) + " more are not expressible in C++";
  }

  std::map<std::string, Numbers> counts_;
};

}  // namespace lockstep::testing
