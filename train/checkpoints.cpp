#include "lockstep/train/checkpoints.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/input_file.h"
#include "lockstep/nn/atomic_file.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// "run.safetensors" in two: "run.step" and ".safetensors".
std::pair<std::string, std::string> around_number(const std::string& path) {
  const fs::path file = fs::path(path).filename();
  return {file.stem().string() + ".step", file.extension().string()};
}

fs::path folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

/// Gives the file that `path` leads to another name; where there are no links, or not from there to here, a copy of it,
/// which has that name when it is whole. Throws Error.
void give_name(const std::string& path, const std::string& name) {
  std::error_code ignored;
  fs::remove(name, ignored);
  if (::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
  const InputFile from = open_input_file(path, "");
  nn::detail::AtomicFile to(name);
  std::vector<char> piece(std::size_t{1} << 20);
  for (std::int64_t size = 1; size > 0;) {
    size = read_all(from.descriptor.get(), piece.data(), piece.size());
    LOCKSTEP_CHECK(size >= 0, "cannot read {}: {}", path, std::generic_category().message(errno));
    to.write(piece.data(), static_cast<std::size_t>(size));
  }
  to.commit();
}

}  // namespace

Checkpoints::Checkpoints(std::string path, std::int64_t keep) : path_(std::move(path)), keep_(keep) {
  LOCKSTEP_CHECK(keep_ >= 1, "[run] {} checkpoints are to be kept, expected 1 or more", keep_);
}

std::string Checkpoints::numbered(std::int64_t step) const {
  const auto [before, after] = around_number(path_);
  return (fs::path(path_).parent_path() / fmt::format("{}{:08}{}", before, step, after)).string();
}

std::vector<Checkpoints::Found> Checkpoints::history() const {
  std::vector<Found> found;
  const auto [before, after] = around_number(path_);
  std::error_code ignored;  // a folder that is not there holds none
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(path_), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) continue;
    const char* const end = name.data() + name.size() - after.size();
    std::int64_t step = 0;
    if (const auto number = std::from_chars(name.data() + before.size(), end, step);
        number.ec == std::errc() && number.ptr == end)
      found.push_back({(fs::path(path_).parent_path() / name).string(), step});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

std::optional<Checkpoints::Found> Checkpoints::newest() const {
  if (path_.empty()) return std::nullopt;
  std::vector<Found> candidates = history();
  if (std::error_code ignored; fs::exists(path_, ignored)) candidates.push_back({path_});
  std::string failure, passed_over;
  const auto readable = [&](const std::string& path, const auto& read) {
    try {
      read();
      return true;
    } catch (const Error& error) {
      failure = error.what();
      passed_over += fmt::format("{}'{}' ({})", passed_over.empty() ? "" : ", ", path, failure);
      return false;
    }
  };
  std::vector<Found> found;
  for (Found& each : candidates)
    if (readable(each.path, [&] { each.step = nn::read_training_state(each.path).step; })) found.push_back(each);
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  // All of the values are looked at in the one that is taken.
  const auto whole = [&](const std::string& path) {
    return readable(path, [&] { nn::SafetensorsFile(path).verify(); });
  };
  while (!found.empty() && !whole(found.back().path)) found.pop_back();
  std::optional<Found> best = found.empty() ? std::nullopt : std::optional(found.back());
  if (best) best->passed_over = passed_over;
  LOCKSTEP_CHECK(
      best || candidates.empty(),
      "[run] '{}' cannot be read as a checkpoint ({}) and would be overwritten; name another --checkpoint or "
      "delete it",
      path_, failure);
  return best;
}

void Checkpoints::refuse_later_than(std::int64_t step) const {
  const std::optional<Found> found = newest();
  LOCKSTEP_CHECK(!found || found->step <= step,
                 "[run] the checkpoint '{}' is of step {}, later than step {} at which this run begins, and would be "
                 "overwritten; go on from it with --resume auto, name another --checkpoint, or delete it",
                 found->path, found->step, step);
}

void Checkpoints::written(std::int64_t step) const {
  if (keep_ == 1) return;
  const std::string second = numbered(step);
  nn::detail::AtomicFile::remove_leftovers(folder_of(path_).string(), around_number(path_).first);
  try {
    give_name(path_, second);
  } catch (const Error& error) {
    lockstep::detail::throw_error(
        fmt::format("[run] the checkpoint '{}' cannot be kept as '{}': {}", path_, second, error.what()));
  }
  const std::vector<Found> all = history();
  std::error_code error;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < all.size(); ++i) {
    fs::remove(all[i].path, error);
    LOCKSTEP_CHECK(!error, "[run] the old checkpoint '{}' cannot be deleted: {}", all[i].path, error.message());
  }
}

}  // namespace lockstep::train
