#pragma once

// For .cpp files only.

#include <functional>
#include <string>

namespace lockstep::train {

/// Note [Outputs]
/// A training takes hours, and its files are written at the end. So before the first step each of them is tried, and a
/// path that cannot be written is an error while nothing is lost yet. What can be written then and cannot later (the
/// disk is full, the folder gone) is written where it can be: beside its place, else in the working folder.

/// Throws Error unless a file can be written under this name, in one piece (`whole`: through a temporary file in its
/// folder) or line by line. Does nothing for an empty path. `what` names it: "checkpoint".
void try_output(const std::string& what, const std::string& path, bool whole);

/// Calls write(path) and returns `path`. If that throws Error, tries "<path>.rescued", then "<file>.rescued" in the
/// working folder, under names that are not taken; returns where it was written. Throws the first Error if nowhere.
/// `failure` gets what() of that Error, empty if there was none.
std::string write_somewhere(const std::string& path, const std::function<void(const std::string& path)>& write,
                            std::string& failure);

}  // namespace lockstep::train
