#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/run.h"
#include "lockstep/train/workers.h"

namespace lockstep::training {

/// Note [Programs]
/// main() of a training program: the command line of everything that Workers and Run can do (--mode, --nproc,
/// --lockstep, --epochs, --checkpoint, --resume, --metrics and some thirty more; --help lists them) beside the
/// program's own options, the processes that --nproc asks for, errors as one line on stderr, and the exit status.
///
///   int main(int argc, char** argv) {
///     double lr = 0.02;
///     training::Program program("train_net", "Trains the net.");
///     program.add_option("--lr", lr, "Learning rate");
///     return program.main(argc, argv, [&](training::Workers& workers, const training::RunOptions& options) {
///       ...
///       return training::Run(step, *optimizer, loader, loss, options).train().exit_status();
///     });
///   }
///
/// Underscores in names of options are dashes. What PyTorch's launchers append (--local_rank N) is understood.
class Program {
 public:
  /// No bound.
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  /// `version` is what --version prints; empty: there is no such option.
  Program(std::string name, std::string description, std::string version = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Options of the program's own, "--name". The variable holds the default, and must live until main() returns.
  /// Any text.
  void add_option(const std::string& name, std::string& value, const std::string& help);
  /// One of these.
  void add_option(const std::string& name, std::string& value, const std::string& help,
                  const std::vector<std::string>& choices);
  /// Within [least, most]; an infinite bound is none.
  void add_option(const std::string& name, double& value, const std::string& help, double least = -kInfinity,
                  double most = kInfinity);
  void add_option(const std::string& name, std::optional<double>& value, const std::string& help,
                  double least = -kInfinity, double most = kInfinity);
  void add_option(const std::string& name, std::int64_t& value, const std::string& help, double least = -kInfinity,
                  double most = kInfinity);
  /// A file, or with `folder` a folder with these `files`, that the program writes when the training is over. Only rank
  /// 0's counts, and all ranks have it when the body begins. It is tried before the first step, see
  /// RunOptions::other_outputs.
  void add_output(const std::string& name, std::string& path, const std::string& help, bool folder = false,
                  const std::vector<std::string>& files = {});
  /// Options of the program's own that each rank may give as it likes, such as the place of its data. All others, the
  /// common ones too but for a few (train/program_options.cpp), must be the same on all ranks, or the body does not
  /// begin.
  void let_ranks_differ(const std::vector<std::string>& names);
  /// On if the flag is given.
  void add_flag(const std::string& name, bool& value, const std::string& help);

  /// Adds --mesh and --lockstep-tensor, for a program that divides its model over WorkerOptions::mesh. `choose`: the
  /// mesh for so many processes that --mesh auto means; Error if there is none. Called after the command line is
  /// parsed.
  void add_mesh(std::function<distributed::MeshSizes(int processes, const WorkerOptions& workers)> choose);

  /// Whether the command line has the option "--name"; for Check and Body.
  bool is_given(const std::string& name) const;

  /// Defaults of the common options, for the program to change before main(): epochs, batch size, unit, ...
  WorkerOptions& workers();
  /// The same for those of the run. Without epochs (0) there is no --epochs, and Check sets how many there are.
  RunOptions& run();

  /// Called when the command line has been parsed, before anything else: fills settings and checks the program's own
  /// options. An Error that it throws means that the command line is wrong: status 2.
  using Check = std::function<void(const WorkerOptions& workers, RunOptions& run)>;
  /// The training itself, in each process; returns the exit status.
  using Body = std::function<int(Workers& workers, const RunOptions& options)>;

  /// Parses, starts processes if --nproc says so, joins the job, calls `body`. Returns main's exit status: 2 for a
  /// wrong command line, 1 for an exception, which is printed, launcher::kUnwritten for an UnwrittenError, else what
  /// `body` returned, or the launcher.
  int main(int argc, const char* const* argv, const Body& body, const Check& check = {});

 private:
  struct Options;
  std::unique_ptr<Options> options_;
};

}  // namespace lockstep::training
