// lockstep-doctor: examines what jobs need of this machine, one line each, and says what to do about each failing one.
#include "lockstep/train/command_line/main.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "apps/lockstep_doctor/checks.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/train/command_line/parse.h"

namespace {

using namespace lockstep::doctor;
using lockstep::command_line::UsageError;

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : "lockstep-doctor";
}

const char* name(Verdict verdict) {
  return verdict == Verdict::ok ? "ok" : verdict == Verdict::note ? "note" : "FAILED";
}

void print_text(const Findings& findings, int failures) {
  for (const Finding& finding : findings) {
    fmt::print("{:<7} {:<14} {:<18} {}\n", name(finding.verdict), finding.area, finding.what, finding.found);
    if (!finding.remedy.empty()) fmt::print("{:>22} -> {}\n", "", finding.remedy);
  }
  if (failures == 0)
    fmt::print("all is well\n");
  else
    fmt::print("{} of {} failed\n", failures, findings.size());
}

void print_json(const Findings& findings, int failures) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json entry = {{"area", finding.area},
                                    {"what", finding.what},
                                    {"verdict", finding.verdict == Verdict::failed ? "failed" : name(finding.verdict)},
                                    {"found", finding.found}};
    if (!finding.remedy.empty()) entry["remedy"] = finding.remedy;
    list.push_back(std::move(entry));
  }
  const nlohmann::ordered_json report = {{"ok", failures == 0}, {"failures", failures}, {"findings", list}};
  using Handler = nlohmann::ordered_json::error_handler_t;
  fmt::print("{}\n", report.dump(2, ' ', false, Handler::replace));
}

std::optional<int> number_in(const char* variable) {
  const auto text = lockstep::environment_variable(variable);
  if (!text) return {};
  const auto value = lockstep::parse_number<int>(*text);
  if (!value) throw UsageError(fmt::format("{} is '{}'; expected a port", variable, *text));
  return value;
}

int run(int argc, char** argv) {
  bool json = false, mpi_rank = false;
  int port = 0;
  double timeout = 10;
  Request request;
  CLI::App app{
      "Examines this machine for jobs of lockstep: devices, libraries, interfaces, ports, shared memory, and an\n"
      "all-reduce of 1 MB between two processes with each backend. Status 1 if something failed.",
      "lockstep-doctor"};
  app.add_flag("--json", json, "print one JSON object");
  app.add_option("--port", port, "the job's port; default: MASTER_PORT, if set")
      ->type_name("P")
      ->check(lockstep::command_line::number(1, 65535));
  app.add_option("--connect", request.peer, "also try to reach this machine, on that port (29500)")->type_name("HOST");
  app.add_option("--timeout", timeout, "seconds for each attempt to reach something")
      ->type_name("S")
      ->check(lockstep::command_line::number(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--mpi-rank", mpi_rank)->group("");
  if (!lockstep::command_line::parse(app, argc, argv)) return 0;
  request.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  if (mpi_rank) return run_mpi_rank(request);
  request.port = app.count("--port") ? std::optional(port) : number_in("MASTER_PORT");

  // Forks, so it comes before everything that starts threads.
  const Findings reductions = check_all_reduce(request, own_path());
  Findings all;
  for (const Findings& some : {check_devices(), check_libraries(), check_interfaces(request), check_ports(request),
                               check_shared_memory(), reductions})
    all.insert(all.end(), some.begin(), some.end());
  const auto failures =
      std::count_if(all.begin(), all.end(), [](const Finding& finding) { return finding.verdict == Verdict::failed; });
  json ? print_json(all, static_cast<int>(failures)) : print_text(all, static_cast<int>(failures));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::command_line::run_main("lockstep-doctor", [&] { return run(argc, argv); });
}
