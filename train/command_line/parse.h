#pragma once

// What all programs do with their arguments, around CLI11. For .cpp files only.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::command_line {

/// Note [Names of options]
/// Underscores in the name of an option are dashes: --nproc_per_node=2 is --nproc-per-node=2, as with torchrun, whose
/// users have both in their scripts. Values are left as they are, and so is everything after "--".

/// Parses main's arguments into the variables that `app` was given. Returns false if --help asked for the help, which
/// is then on stdout. Throws UsageError, in one line, for what CLI11 refuses.
///
/// With `program`, the command line ends with a program and its arguments, which are none of ours: they begin after
/// "--" or, without one, with the first word that is neither an option nor the value of one.
bool parse(CLI::App& app, int argc, const char* const* argv, std::vector<std::string>* program = nullptr);

/// A check for CLI11: a number, and not below `least`. (CLI::Range says the largest number there is in its errors.)
CLI::Validator at_least(double least);

}  // namespace lockstep::command_line
