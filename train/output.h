#pragma once

// For .cpp files only.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::training {

/// Note [Outputs]
/// A training takes hours, and its files are written at the end. So before the first step each of them is tried, and a
/// path that cannot be written, or not as much of it as is known to come, is an error while nothing is lost yet. So are
/// two outputs that are one file, and one that would take the place of a training checkpoint. What can be written then
/// and cannot later (the disk is full, the folder gone) is written where it can be: beside its place, else in the
/// working folder.

/// A file that a training writes.
struct Output {
  std::string what;         ///< "checkpoint"
  std::string path;         ///< empty: it is not written; with a slash at its end it is a folder, made if need be
  bool whole = true;        ///< in one piece, through a temporary file in its folder; else line by line
  bool checkpoint = false;  ///< may replace a checkpoint
  std::size_t bytes = 0;    ///< that it will have at least
  std::size_t files = 1;    ///< of that size, which must fit at a time beside what is there
  std::size_t left = 1;     ///< of these, at the end; used of a checkpoint
};

/// Throws Error unless each can be written under its name, and no two are the same file, under whatever names.
void try_outputs(const std::vector<Output>& outputs);

/// The same place, whatever the working folder is later; an empty path stays so.
std::string absolute_path(const std::string& path);

/// Whether the file can be read and is a training checkpoint.
bool is_training_checkpoint(const std::string& path);

/// Calls write(path) and returns `path`. If that throws Error, tries "<path>.rescued", then "<file>.rescued" in the
/// working folder, under names that are not taken; returns where it was written. Throws the first Error if nowhere.
/// `failure` gets what() of that Error, empty if there was none.
std::string write_somewhere(const std::string& path, const std::function<void(const std::string& path)>& write,
                            std::string& failure);

}  // namespace lockstep::training
