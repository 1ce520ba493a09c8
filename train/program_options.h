#pragma once

// For .cpp files only.

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/program.h"

namespace lockstep::training {

/// The common options of programs, as they are typed.
struct Program::Options {
  Options(std::string program, const std::string& description, std::string version);

  /// Adds them to `app`, with the values of `workers` and `run` as defaults.
  void add_common();
  /// Turns text into values, once the command line is parsed. Throws UsageError for what does not go together.
  void settle();

  /// What must be the same on all ranks: every option of the table, those of the program too, but for a list of some.
  nn::Metadata settings_of_ranks() const;

  struct OwnOutput {
    std::string option;
    std::string* path;
    bool folder;
    std::vector<std::string> files;  ///< of the folder
  };

  std::string name;
  std::string version;
  CLI::App app;
  WorkerOptions workers;
  RunOptions run;

  std::string mode;
  std::vector<int> devices;
  int nproc = 0;
  double timeout = 300.0;
  std::string amp = "off", gather = "fp32";
  std::string compress = "none";
  bool no_progress = false;
  bool print_version = false;
  std::string ignored;
  std::vector<OwnOutput> outputs;
  std::vector<std::string> may_differ;  // of the program's own options
  std::string mesh;
  std::function<distributed::MeshSizes(int processes, const WorkerOptions& workers)> choose_mesh;  // or none: no --mesh

 private:
  void settle_mode();
  void settle_mesh();
  void settle_device();
  void check_lockstep() const;
  void note_defaults();
  /// Throws UsageError for a file that is named by no text, as a script's variable that was not set.
  void refuse_empty_paths() const;

  std::map<std::string, std::string> defaults_;  // of options, as text
};

}  // namespace lockstep::training
