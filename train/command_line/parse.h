#pragma once

// What all programs do with their arguments, around CLI11. For .cpp files only.

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::command_line {

/// Note [Names of options]
/// Underscores in the name of an option are dashes: --nproc_per_node=2 is --nproc-per-node=2, as with torchrun, whose
/// users have both in their scripts. Values are left as they are, and so is everything after "--". A flag that stands
/// for a number, and so takes another after "=", takes one from the next word too: --zero 3 is --zero=3.

/// Parses main's arguments into the variables that `app` was given. Returns false if --help asked for the help, which
/// is then on stdout. Throws UsageError, in one line, for what CLI11 refuses.
///
/// With `program`, the command line ends with a program and its arguments, which are none of ours: they begin after
/// "--" or, without one, with the first word that is neither an option nor the value of one.
bool parse(CLI::App& app, int argc, const char* const* argv, std::vector<std::string>* program = nullptr);

/// A check for CLI11: a number that T holds, written in full as in core/parse_number.h (CLI11 alone takes -1 for an
/// unsigned number, and what is too large for the largest there is), finite, and within [least, most]. For int,
/// std::int64_t, std::uint64_t and double.
template <typename T>
CLI::Validator number(T least = std::numeric_limits<T>::lowest(), T most = std::numeric_limits<T>::max());

}  // namespace lockstep::command_line
