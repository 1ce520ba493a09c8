// lockstep-run: starts the processes of a job on this machine. See distributed/launcher/launcher.h for what they find.

#include "lockstep/train/command_line/main.h"

#include <fmt/core.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/distributed/launcher/launcher.h"
#include "lockstep/train/command_line/parse.h"

namespace {

using lockstep::command_line::UsageError;

int run(int argc, char** argv) {
  lockstep::launcher::Options options;
  std::string nproc = "auto";
  double join_timeout = 60, node_timeout = 30, grace = 30;
  CLI::App app{
      "Starts the processes of a job on this machine, joins their output and ends them together.\n"
      "  lockstep-run --nproc-per-node 2 ./mnist_train --mode ddp\n"
      "With several machines, run it once on each, with the same --nnodes, --master-addr, --master-port and\n"
      "LOCKSTEP_TOKEN, and each its own --node-rank.",
      "lockstep-run"};
  app.add_option("--nproc-per-node", nproc, "workers on this machine, or auto: one for each GPU, else for each core")
      ->type_name("N")
      ->check(CLI::Validator(
          [number = lockstep::command_line::number(1, 4096)](std::string& text) {
            if (text == "auto") return std::string();
            const std::string refusal = number(text);
            return refusal.empty() ? refusal : refusal + ", or auto";
          },
          "1 to 4096, or auto"))
      ->capture_default_str();
  app.add_option("--nnodes", options.nnodes, "machines of the job")
      ->type_name("M")
      ->check(lockstep::command_line::number<int>())
      ->capture_default_str();
  app.add_option("--node-rank", options.node_rank, "number of this machine, from 0; default: 0")
      ->type_name("R")
      ->check(lockstep::command_line::number<int>());
  app.add_option("--master-addr", options.master_addr, "address of machine 0, for --nnodes > 1")
      ->type_name("A")
      ->capture_default_str();
  app.add_option("--master-port", options.master_port, "port of machine 0, for --nnodes > 1")
      ->type_name("P")
      ->check(lockstep::command_line::number<int>())
      ->capture_default_str();
  app.add_option("--max-restarts", options.max_restarts, "how often all workers are started again after a failure")
      ->type_name("K")
      ->check(lockstep::command_line::number<int>())
      ->capture_default_str();
  app.add_option("--min-nproc", options.min_nproc,
                 "elastic: after a failure go on with the workers that are left, at least so many in all")
      ->check(lockstep::command_line::number(1))
      ->type_name("m");
  app.add_option("--join-timeout", join_timeout, "seconds that the machines wait for each other at the start")
      ->type_name("S")
      ->check(lockstep::command_line::number(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--node-timeout", node_timeout, "seconds after which a machine that shows no sign of life is lost")
      ->type_name("S")
      ->check(lockstep::command_line::number(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--grace", grace, "seconds that workers have after SIGTERM, to save what they have, before SIGKILL")
      ->type_name("S")
      ->check(lockstep::command_line::number(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--log-dir", options.log_dir, "also write each worker's output to DIR/rank<R>.out and DIR/rank<R>.err")
      ->type_name("DIR");
  app.add_flag("--no-python")->group("");  // torchrun's, for programs like ours

  std::vector<std::string> program;
  if (!lockstep::command_line::parse(app, argc, argv, &program)) return 0;
  if (program.empty()) throw UsageError("there is no program to start; see --help");
  options.join_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(join_timeout * 1000));
  options.silence_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(node_timeout * 1000));
  options.after_sigterm = std::chrono::milliseconds(static_cast<std::int64_t>(grace * 1000));
  options.nproc_per_node = nproc == "auto" ? lockstep::launcher::default_nproc() : std::stoi(nproc);
  try {
    return lockstep::launcher::run(options, program);
  } catch (const lockstep::launcher::UsageError& error) {
    throw UsageError(fmt::format("{}; see --help", error.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::command_line::run_main("lockstep-run", [&] { return run(argc, argv); });
}
