#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "lockstep/core/check.h"
#include "lockstep/core/outlet.h"
#include "lockstep/train/sink.h"

namespace lockstep::training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBarWidth = 30;
constexpr double kBarPeriod = 0.1;  // seconds
constexpr std::int64_t kLinePeriod = 100;

std::string as_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string as_key(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

class Console final : public Sink {
 public:
  Console(bool progress_bar, bool others_wait) : progress_bar_(progress_bar), others_wait_(others_wait) {}

  // By now the program has done what followed the run, and no process waits for it.
  ~Console() override {
    if (ended_) out_.drain();
  }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void begin(const RunDescription& run) override {
    run_ = run;
    last_shown_ = Clock::now();
  }

  void message(const std::string& text) override {
    put((bar_shown_ ? "\r\033[K" : "") + text + "\n");
    bar_shown_ = false;
  }

  void step(const StepReport& report) override {
    out_.flush();
    samples_ += report.samples;
    const auto now = Clock::now();
    const double since = std::chrono::duration<double>(now - last_shown_).count();
    const bool is_last = report.step + 1 == run_.total_steps;
    if (!is_last && !(progress_bar_ ? since >= kBarPeriod : (report.step + 1) % kLinePeriod == 0)) return;
    const double rate = static_cast<double>(samples_) / std::max(since, 1e-9);
    last_shown_ = now;
    samples_ = 0;
    if (progress_bar_) {
      if (out_.empty()) draw_bar(report, rate);
      return;
    }
    put(fmt::format("step {}/{} epoch {} loss {:.4f} {}/s {:.0f}\n", report.step + 1, run_.total_steps, report.epoch,
                    report.loss, run_.unit, rate));
  }

  void evaluation(std::int64_t, std::int64_t epoch, const Values& values) override {
    std::string text = fmt::format("epoch {}:", epoch);
    for (const auto& [name, value] : values)
      text += fmt::format("{} {} {:.4f}", name == values.front().first ? "" : ",", name, value);
    message(text);
  }

  void end(const Result& result) override {
    if (result.stopped_by == 0) show_result(result);
    out_.drain(!others_wait_);
    ended_ = true;
    if (result.stopped_by == SIGPIPE) return;  // of which the run tells by another way
    if (out_.error() != 0 || out_.abandoned())
      throw Error(fmt::format("what goes to stdout could not all be written: {}",
                              std::generic_category().message(out_.error() != 0 ? out_.error() : EPIPE)));
  }

 private:
  void show_result(const Result& result) {
    std::string text = "result:";
    for (const auto& [name, value] : result.evaluation) text += fmt::format(" {}={:.4f}", as_key(name), value);
    message(text + fmt::format(" steps={} seconds={:.2f} {}_per_s={:.0f} weights_sha256={} state_sha256={}",
                               result.steps, result.seconds, as_key(run_.unit), result.samples_per_s,
                               result.weights_sha256, result.state_sha256));
  }

  // A process that others wait for does not wait itself (Note [Slow readers]).
  void put(const std::string& text) {
    std::fflush(stdout);  // what the program has printed itself comes first
    out_.write(text);
    if (!others_wait_) out_.drain();
  }

  void draw_bar(const StepReport& report, double rate) {
    const std::int64_t done = report.step + 1;
    const int filled = static_cast<int>(kBarWidth * done / std::max<std::int64_t>(run_.total_steps, 1));
    const double remaining = static_cast<double>((run_.total_steps - done) * run_.batch_size) / rate;
    put(fmt::format("\r\033[K[{:=<{}}{:<{}}] {}/{} loss {:.4f} {:.0f} {}/s {} left", "", filled, "", kBarWidth - filled,
                    done, run_.total_steps, report.loss, rate, run_.unit, as_duration(remaining)));
    bar_shown_ = true;
  }

  bool progress_bar_;
  bool others_wait_;
  Outlet out_{STDOUT_FILENO};
  RunDescription run_;
  Clock::time_point last_shown_ = Clock::now();
  std::int64_t samples_ = 0;
  bool bar_shown_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Sink> console(bool progress_bar, bool others_wait) {
  return std::make_unique<Console>(progress_bar, others_wait);
}

}  // namespace lockstep::training
