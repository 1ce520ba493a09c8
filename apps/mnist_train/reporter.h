#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

namespace lockstep::apps {

struct Result {
  double test_accuracy = 0.0;
  double test_loss = 0.0;
  std::int64_t steps = 0;
  double seconds = 0.0;
  double images_per_s = 0.0;
  std::string weights_sha256;
};

/// What rank 0 tells the user: a progress bar on a terminal, else plain lines; a JSON line a step in the metrics file;
/// the result line. Every other rank's reporter is silent.
class Reporter {
 public:
  struct Options {
    bool enabled = true;
    bool progress_bar = false;
    std::string metrics;  ///< file; empty: none
    std::int64_t batch_size = 0;
    std::int64_t total_steps = 0;
    std::int64_t first_step = 0;
  };
  /// Throws Error if the metrics file cannot be opened.
  explicit Reporter(Options options);

  void message(const std::string& text);
  /// After each step; `step` counts from 0.
  void step(std::int64_t step, std::int64_t epoch, double loss, std::int64_t images);
  void evaluation(std::int64_t epoch, double accuracy, double loss);
  /// Throws Error if the metrics could not be written.
  void result(const Result& result);

 private:
  void draw_bar(std::int64_t step, double loss, double images_per_s);
  void clear_bar();

  using Clock = std::chrono::steady_clock;
  Options options_;
  std::ofstream metrics_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_step_ = start_;
  Clock::time_point last_shown_ = start_;
  std::int64_t images_since_shown_ = 0;
  bool bar_shown_ = false;
};

}  // namespace lockstep::apps
