#include "lockstep/train/program.h"

#include <cstdio>

#include "lockstep/core/check.h"
#include "lockstep/core/out_of_memory.h"
#include "lockstep/distributed/launcher/launcher.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"
#include "lockstep/train/program_options.h"
#include "lockstep/train/started_by_launcher.h"

namespace lockstep::training {
namespace {

// Of a bound that may be infinite, which is none.
template <typename T>
CLI::Validator within(double least, double most) {
  using Limits = std::numeric_limits<T>;
  return command_line::number<T>(least == -Program::kInfinity ? Limits::lowest() : static_cast<T>(least),
                                 most == Program::kInfinity ? Limits::max() : static_cast<T>(most));
}

}  // namespace

Program::Program(std::string name, std::string description, std::string version)
    : options_(std::make_unique<Options>(std::move(name), description, std::move(version))) {}

Program::~Program() = default;

void Program::add_option(const std::string& name, std::string& value, const std::string& help) {
  options_->app.add_option(name, value, help)->capture_default_str();
}

void Program::add_option(const std::string& name, std::string& value, const std::string& help,
                         const std::vector<std::string>& choices) {
  options_->app.add_option(name, value, help)->check(CLI::IsMember(choices))->capture_default_str();
}

void Program::add_option(const std::string& name, double& value, const std::string& help, double least, double most) {
  options_->app.add_option(name, value, help)->check(within<double>(least, most))->capture_default_str();
}

void Program::add_option(const std::string& name, std::optional<double>& value, const std::string& help, double least,
                         double most) {
  options_->app.add_option(name, value, help)->check(within<double>(least, most));
}

void Program::add_option(const std::string& name, std::int64_t& value, const std::string& help, double least,
                         double most) {
  options_->app.add_option(name, value, help)->check(within<std::int64_t>(least, most))->capture_default_str();
}

void Program::add_flag(const std::string& name, bool& value, const std::string& help) {
  options_->app.add_flag(name, value, help);
}

void Program::add_output(const std::string& name, std::string& path, const std::string& help, bool folder,
                         const std::vector<std::string>& files) {
  add_option(name, path, help);
  options_->outputs.push_back({name, &path, folder, files});
}

void Program::let_ranks_differ(const std::vector<std::string>& names) {
  options_->may_differ.insert(options_->may_differ.end(), names.begin(), names.end());
}

void Program::add_mesh(std::function<distributed::MeshSizes(int processes, const WorkerOptions& workers)> choose) {
  options_->choose_mesh = std::move(choose);
}

bool Program::is_given(const std::string& name) const {
  return options_->app.count(name) > 0;
}

WorkerOptions& Program::workers() {
  return options_->workers;
}

RunOptions& Program::run() {
  return options_->run;
}

int Program::main(int argc, const char* const* argv, const Body& body, const Check& check) {
  Options& options = *options_;
  return command_line::run_main(options.name.c_str(), [&] {
    options.add_common();
    if (!command_line::parse(options.app, argc, argv)) return 0;
    if (options.print_version) {
      std::printf("%s %s\n", options.name.c_str(), options.version.c_str());
      return 0;
    }
    options.settle();
    if (check) {
      try {
        check(options.workers, options.run);
      } catch (const Error& error) {
        throw command_line::UsageError(error.what());
      }
    }
    if (options.nproc > 1 && !started_by_launcher()) {
      launcher::Options launch;
      launch.nproc_per_node = options.nproc;
      launch.output = launcher::Output::rank0_plain;
      launch.name = options.name;
      return launcher::run_local(launch, std::vector<std::string>(argv + 1, argv + argc));
    }
    for (const Options::OwnOutput& output : options.outputs)
      while (output.folder && output.path->size() > 1 && output.path->ends_with('/')) output.path->pop_back();
    try {
      std::string unwritten;
      const int status = with_memory_for("training, or getting ready for it", [&] {
        Workers workers(options.workers);
        options.run.workers = workers.count();
        if (const auto group = workers.group(); group && group->world_size() > 1) {
          check_same_settings(options.settings_of_ranks(), *group);
          for (const Options::OwnOutput& output : options.outputs) *output.path = group->broadcast_object(*output.path);
        }
        for (const Options::OwnOutput& output : options.outputs) {
          if (output.path->empty()) continue;
          const std::string what = (output.folder ? "folder of " : "file of ") + output.option;
          options.run.other_outputs.emplace_back(what, *output.path + (output.folder ? "/" : ""));
          for (const std::string& file : output.files)
            options.run.other_outputs.emplace_back(what, *output.path + "/" + file);
        }
        try {
          return body(workers, options.run);
        } catch (const UnwrittenError& error) {
          // All ranks have done their work, and leave the job in good order. Of what is rank 0's it tells, and has the
          // status.
          if (const auto group = workers.group(); error.is_of_all_ranks() && group && group->rank() != 0) return 0;
          unwritten = error.what();
          return launcher::kUnwritten;
        }
      });
      if (!unwritten.empty()) command_line::print_error(options.name.c_str(), unwritten);
      // The result line is what a run was for: a full disk must not take it without a word.
      if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
      if (status != 0 && unwritten.empty())
        throw Error("what goes to stdout could not all be written; is the disk full?");
      throw UnwrittenError("what goes to stdout could not all be written, and all else was done; is the disk full?");
    } catch (const UnwrittenError& error) {
      command_line::print_error(options.name.c_str(), error.what());
      return launcher::kUnwritten;
    } catch (const distributed::ProcessGroupError& error) {
      throw Error(error.brief());  // the whole is in the log
    }
  });
}

}  // namespace lockstep::training
