#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "lockstep/train/line_file.h"
#include "lockstep/train/sink.h"

namespace lockstep::training {
namespace {

using Clock = std::chrono::steady_clock;

class JsonLines final : public Sink {
 public:
  explicit JsonLines(std::string path) : path_(std::move(path)) {}

  void begin(const RunDescription& run) override {
    unit_ = run.unit;
    last_ = Clock::now();
    file_ = LineFile(path_, "metrics file", run.first_step > 0);
  }

  void step(const StepReport& report) override {
    write_line();
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    line_ = {{"step", report.step},
             {"epoch", report.epoch},
             {"loss", report.loss},
             {"loss_hex", fmt::format("{:a}", report.loss)},
             {unit_ + "_per_s", static_cast<double>(report.samples) / std::max(seconds, 1e-9)}};
  }

  void evaluation(std::int64_t step, std::int64_t epoch, const Values& values) override {
    if (!line_.contains("step")) line_ = {{"step", step}, {"epoch", epoch}};
    for (const auto& [name, value] : values) {
      std::string key = name;
      std::replace(key.begin(), key.end(), ' ', '_');
      if (line_.contains(key)) key = "evaluation_" + key;  // "loss" of the step stays
      line_[key] = value;
    }
    write_line();
  }

  void checkpoint() override { write_line(); }

  void end(const Result&) override {
    write_line();
    LOCKSTEP_CHECK(file_.error() == 0, "the metrics file '{}' could not be written, and lacks lines: {}", path_,
                   std::strerror(file_.error()));
    LOCKSTEP_CHECK(
        !file_.is_lost(),
        "the metrics file '{}' was removed or renamed while it was written, and its lines are not under that "
        "name",
        path_);
    file_ = {};
  }

 private:
  // Held back until it is known that no evaluation follows.
  void write_line() {
    if (line_.contains("step")) file_.write(line_.dump());
    line_ = {};
  }

  std::string path_;
  std::string unit_;
  LineFile file_;
  nlohmann::ordered_json line_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

std::unique_ptr<Sink> json_lines(const std::string& path) {
  return std::make_unique<JsonLines>(path);
}

}  // namespace lockstep::training
