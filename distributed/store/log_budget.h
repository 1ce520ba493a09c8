#pragma once

#include <chrono>
#include <optional>

namespace lockstep::distributed {

/// So many lines in so much time; the rest is counted. Not thread-safe.
class LogBudget {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLines = 10;
  static constexpr std::chrono::seconds kPeriod{10};

  /// True if a line may be written now.
  bool take(Clock::time_point now) {
    if (now >= start_ + kPeriod && passed_over_ == 0) {
      start_ = now;
      lines_ = 0;
    }
    if (lines_ < kLines) return ++lines_, true;
    return ++passed_over_, false;
  }

  /// How many lines were not written, once their period is over; then counting starts anew. 0: nothing to say now.
  int passed_over(Clock::time_point now) {
    if (passed_over_ == 0 || now < start_ + kPeriod) return 0;
    const int count = passed_over_;
    passed_over_ = 0;
    return count;
  }

  /// When passed_over() will have something to say.
  std::optional<Clock::time_point> due() const {
    if (passed_over_ == 0) return {};
    return start_ + kPeriod;
  }

 private:
  Clock::time_point start_ = Clock::now();
  int lines_ = 0;
  int passed_over_ = 0;
};

}  // namespace lockstep::distributed
