#include "apps/mnist_train/reporter.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"

namespace lockstep::apps {
namespace {

constexpr int kBarWidth = 30;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string as_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Reporter::Reporter(Options options) : options_(std::move(options)) {
  if (!options_.enabled || options_.metrics.empty()) return;
  // A resumed run goes on in its file.
  metrics_.open(options_.metrics, options_.first_step > 0 ? std::ios::app : std::ios::trunc);
  LOCKSTEP_CHECK(metrics_.is_open(), "the metrics file '{}' cannot be opened for writing; check --metrics",
                 options_.metrics);
}

void Reporter::message(const std::string& text) {
  if (!options_.enabled) return;
  clear_bar();
  put(text + "\n");
}

void Reporter::step(std::int64_t step, std::int64_t epoch, double loss, std::int64_t images) {
  if (!options_.enabled) return;
  const auto now = Clock::now();
  if (metrics_.is_open()) {
    const double rate = static_cast<double>(images) / std::max(seconds_between(last_step_, now), 1e-9);
    metrics_ << nlohmann::ordered_json{{"step", step},
                                       {"epoch", epoch},
                                       {"loss", loss},
                                       {"loss_hex", fmt::format("{:a}", loss)},
                                       {"images_per_s", rate}}
                    .dump()
             << '\n';
  }
  last_step_ = now;
  images_since_shown_ += images;
  const double since = seconds_between(last_shown_, now);
  const bool last = step + 1 == options_.total_steps;
  const bool show = options_.progress_bar ? since >= 0.1 || last : (step + 1) % 100 == 0 || last;
  if (!show) return;
  const double images_per_s = static_cast<double>(images_since_shown_) / std::max(since, 1e-9);
  last_shown_ = now;
  images_since_shown_ = 0;
  if (options_.progress_bar) {
    draw_bar(step, loss, images_per_s);
  } else {
    put(fmt::format("step {}/{} epoch {} loss {:.4f} images/s {:.0f}\n", step + 1, options_.total_steps, epoch, loss,
                    images_per_s));
  }
}

void Reporter::draw_bar(std::int64_t step, double loss, double images_per_s) {
  const double done = static_cast<double>(step + 1) / static_cast<double>(options_.total_steps);
  const int filled = static_cast<int>(done * kBarWidth);
  const double remaining = static_cast<double>((options_.total_steps - step - 1) * options_.batch_size) / images_per_s;
  put(fmt::format("\r\033[K[{:=<{}}{:<{}}] {}/{} loss {:.4f} {:.0f} images/s {} left", "", filled, "",
                  kBarWidth - filled, step + 1, options_.total_steps, loss, images_per_s, as_duration(remaining)));
  bar_shown_ = true;
}

void Reporter::clear_bar() {
  if (bar_shown_) put("\r\033[K");
  bar_shown_ = false;
}

void Reporter::evaluation(std::int64_t epoch, double accuracy, double loss) {
  message(fmt::format("epoch {}: test accuracy {:.4f}, test loss {:.4f}", epoch, accuracy, loss));
}

void Reporter::result(const Result& result) {
  if (!options_.enabled) return;
  if (metrics_.is_open()) {
    metrics_.close();
    LOCKSTEP_CHECK(!metrics_.fail(), "the metrics file '{}' could not be written; is the disk full?", options_.metrics);
  }
  message(fmt::format(
      "result: test_accuracy={:.4f} test_loss={:.4f} steps={} seconds={:.2f} images_per_s={:.0f} weights_sha256={}",
      result.test_accuracy, result.test_loss, result.steps, result.seconds, result.images_per_s,
      result.weights_sha256));
}

}  // namespace lockstep::apps
