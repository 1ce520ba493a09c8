// lockstep-run: starts the processes of a job on this machine. See distributed/launcher/launcher.h for what they find.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/core/parse_number.h"
#include "lockstep/distributed/launcher/launcher.h"

namespace {

constexpr int kUsage = 2;

int wrong_usage(const std::string& message) {
  fmt::print(stderr, "lockstep-run: {}; see lockstep-run --help\n", message);
  return kUsage;
}

int parse_nproc(const std::string& text) {
  if (text == "auto") return lockstep::launcher::default_nproc();
  const auto value = lockstep::parse_number<int>(text);
  if (!value)
    throw lockstep::launcher::UsageError(fmt::format("--nproc-per-node is '{}'; expected a number or auto", text));
  return *value;
}

int run(int argc, char** argv) {
  // Everything after the first "--" belongs to the program.
  char** const separator =
      std::find_if(argv + 1, argv + argc, [](const char* text) { return text == std::string("--"); });
  const std::vector<std::string> command(separator == argv + argc ? separator : separator + 1, argv + argc);

  lockstep::launcher::Options options;
  std::string nproc = "auto";
  double node_timeout = 30;
  CLI::App app{
      "Starts the processes of a job on this machine, joins their output and ends them together.\n"
      "  lockstep-run --nproc-per-node 2 -- ./mnist_train --mode ddp\n"
      "With several machines, run it once on each, with the same --nnodes, --master-addr, --master-port and\n"
      "LOCKSTEP_TOKEN, and each its own --node-rank.",
      "lockstep-run"};
  app.add_option("--nproc-per-node", nproc, "workers on this machine, or auto: one for each GPU, else for each core")
      ->type_name("N|auto")
      ->capture_default_str();
  app.add_option("--nnodes", options.nnodes, "machines of the job")->type_name("M")->capture_default_str();
  app.add_option("--node-rank", options.node_rank, "number of this machine, from 0")->type_name("R");
  app.add_option("--master-addr", options.master_addr, "address of machine 0, for --nnodes > 1")
      ->type_name("A")
      ->capture_default_str();
  app.add_option("--master-port", options.master_port, "port of machine 0, for --nnodes > 1")
      ->type_name("P")
      ->capture_default_str();
  app.add_option("--max-restarts", options.max_restarts, "how often all workers are started again after a failure")
      ->type_name("K");
  app.add_option("--min-nproc", options.min_nproc,
                 "elastic: after a failure go on with the workers that are left, at least so many in all")
      ->type_name("m");
  app.add_option("--node-timeout", node_timeout, "seconds after which a machine that shows no sign of life is lost")
      ->type_name("S")
      ->capture_default_str();
  app.add_option("--log-dir", options.log_dir, "also write each worker's output to DIR/rank<R>.out and DIR/rank<R>.err")
      ->type_name("DIR");
  try {
    app.parse(static_cast<int>(separator - argv), argv);
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();
    const std::string usage = "[OPTIONS]";
    help.insert(help.find(usage) + usage.size(), " -- PROGRAM [ARGUMENTS...]");
    fmt::print("{}", help);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    return wrong_usage(message);
  }
  if (app.count("--min-nproc") && options.min_nproc < 1) return wrong_usage("--min-nproc is not positive");
  if (!(node_timeout > 0 && node_timeout <= 86400))
    return wrong_usage("--node-timeout is not above 0 and at most 86400");
  options.silence_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(node_timeout * 1000));
  if (separator == argv + argc) return wrong_usage("put -- before the program to start");
  if (command.empty()) return wrong_usage("there is no program after --");
  try {
    options.nproc_per_node = parse_nproc(nproc);
    return lockstep::launcher::run(options, command);
  } catch (const lockstep::launcher::UsageError& error) {
    return wrong_usage(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-run: {}\n", error.what());
    return 1;
  }
}
