#include "lockstep/train/checkpoints.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/input_file.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/train/output.h"

namespace lockstep::training {
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

Checkpoints::Found read(const std::string& path) {
  const nn::TrainingState state = nn::read_training_state(path);
  const auto text = [&](const char* name) {
    const auto found = state.extra.find(name);
    return found == state.extra.end() ? std::string() : found->second;
  };
  return {path, state.step, text(kRun), text(kJob)};
}

/// Gives the file that `path` leads to another name; where there are no links, or not from there to here, a copy of it,
/// which has that name when it is whole. Throws Error.
void give_name(const std::string& path, const std::string& name) {
  std::error_code ignored;
  fs::remove(name, ignored);
  if (::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
  const InputFile from = open_input_file(path, "");
  AtomicFile to(name);
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

std::optional<std::int64_t> Checkpoints::step_in(std::string_view name) const {
  const auto [before, after] = around_number(path_);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return {};
  const char* const end = name.data() + name.size() - after.size();
  std::int64_t step = 0;
  const auto number = std::from_chars(name.data() + before.size(), end, step);
  const bool is_one = number.ec == std::errc() && number.ptr == end && name == fs::path(numbered(step)).filename();
  return is_one ? std::optional(step) : std::nullopt;
}

std::vector<Checkpoints::Found> Checkpoints::history() const {
  std::vector<Found> found;
  std::error_code ignored;  // a folder that is not there holds none
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(path_), ignored)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_in(name)) found.push_back({(fs::path(path_).parent_path() / name).string(), *step});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

std::optional<Checkpoints::Found> Checkpoints::newest() const {
  return newest_of([](const Found&) { return true; });
}

std::optional<Checkpoints::Found> Checkpoints::newest_of_job(const std::string& job) const {
  return newest_of([&](const Found& found) { return found.job == job; });
}

std::optional<Checkpoints::Found> Checkpoints::newest_of(const std::function<bool(const Found&)>& counts) const {
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
  bool others = false;
  for (Found& each : candidates) {
    if (!readable(each.path, [&] { each = read(each.path); })) continue;
    if (counts(each))
      found.push_back(each);
    else
      others = true;
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  // All of the values are looked at in the one that is taken.
  const auto whole = [&](const std::string& path) {
    return readable(path, [&] { nn::SafetensorsFile(path).verify(); });
  };
  while (!found.empty() && !whole(found.back().path)) found.pop_back();
  std::optional<Found> best = found.empty() ? std::nullopt : std::optional(found.back());
  if (best) best->passed_over = passed_over;
  LOCKSTEP_CHECK(
      best || others || candidates.empty(),
      "[run] '{}' cannot be read as a checkpoint ({}) and would be overwritten; name another --checkpoint or "
      "delete it",
      path_, failure);
  return best;
}

bool Checkpoints::contains(const std::string& path) const {
  if (path_.empty()) return false;
  std::error_code error;
  if (path == path_ || fs::equivalent(path, path_, error)) return true;
  const std::vector<Found> numbered = history();
  return std::any_of(numbered.begin(), numbered.end(), [&](const Found& found) {
    std::error_code ignored;
    return fs::equivalent(path, found.path, ignored);
  });
}

void Checkpoints::refuse_others(std::int64_t step, const std::string& run, bool own) const {
  const std::optional<Found> found = newest();
  LOCKSTEP_CHECK(!found || found->step <= step,
                 "[run] the checkpoint '{}' is of step {}, later than step {} at which this run begins, and would be "
                 "overwritten; go on from it with --resume auto, name another --checkpoint, or delete it",
                 found->path, found->step, step);
  if (!found || own) return;
  LOCKSTEP_CHECK(!run.empty() && found->run == run,
                 "[run] the checkpoint '{}' of step {} is of a training that this run has not gone on from, and would "
                 "be overwritten; go on from it with --resume auto, name another --checkpoint, or delete it",
                 found->path, found->step);
}

void Checkpoints::check_names() const {
  if (path_.empty() || keep_ == 1) return;
  const std::size_t bytes = fs::path(numbered(0)).filename().string().size();
  LOCKSTEP_CHECK(bytes <= kLongestName,
                 "[run] the checkpoints of '{}' are to be kept under their steps' numbers, and such a name has {} "
                 "bytes, more than the {} that a file's can have; give --checkpoint a shorter name",
                 path_, bytes, kLongestName);
}

std::vector<Checkpoints::Found> Checkpoints::history_until(std::int64_t step) const {
  std::vector<Found> all = history();
  std::erase_if(all, [&](const Found& found) { return found.step > step || !is_training_checkpoint(found.path); });
  return all;
}

std::vector<Output> Checkpoints::outputs(std::int64_t count, std::size_t bytes) const {
  Output named{.what = "checkpoint", .path = path_, .checkpoint = true, .bytes = bytes};
  if (path_.empty()) return {named};
  struct stat info {};
  const auto known = [&](const fs::path& path) { return ::stat(path.c_str(), &info) == 0; };
  // A link may lead to another disk, from where a second name cannot be given.
  std::error_code no_link;
  const fs::path leads_to = fs::read_symlink(path_, no_link);
  const fs::path place = no_link ? fs::path(path_) : leads_to.is_absolute() ? leads_to : folder_of(path_) / leads_to;
  const dev_t disk = known(folder_of(place.string())) ? info.st_dev : 0;
  const bool copies = disk != 0 && known(folder_of(path_)) && info.st_dev != disk;
  const bool is_there = known(path_);
  std::set<std::pair<dev_t, ino_t>> there;  // a second name is no second file
  if (is_there && !copies) there.emplace(info.st_dev, info.st_ino);
  const auto plan = [&](Output& output, std::int64_t keep, std::int64_t before) {
    const std::int64_t all = before + std::max<std::int64_t>(count, 1);
    output.files = static_cast<std::size_t>(std::max<std::int64_t>(1, std::min(keep + 1, all) - before));
    output.left = static_cast<std::size_t>(std::max<std::int64_t>(0, std::min(keep, all) - before));
  };
  if (copies) plan(named, 1, is_there ? 1 : 0);
  if (keep_ > 1)
    for (const Found& found : history_until(std::numeric_limits<std::int64_t>::max()))
      if (known(found.path)) there.emplace(info.st_dev, info.st_ino);
  const auto before = static_cast<std::int64_t>(there.size());
  if (!copies) plan(named, keep_, before);
  if (!copies || keep_ == 1) return {named};
  Output others{.what = "folder of checkpoints", .path = folder_of(path_).string() + "/", .bytes = bytes};
  plan(others, keep_, before);
  return {named, others};
}

std::vector<std::string> Checkpoints::make_room(std::int64_t step) const {
  std::vector<std::string> deleted;
  std::error_code error;
  const std::uintmax_t bytes = keep_ > 1 ? fs::file_size(path_, error) : 0;
  if (keep_ == 1 || error) return deleted;
  const std::vector<Found> all = history_until(step);
  const auto fits = [&] {
    try {
      return AtomicFile(all.back().path).try_reserve(static_cast<std::size_t>(bytes));
    } catch (const Error&) {
      return true;  // the trouble is another, of which the checkpoint itself tells
    }
  };
  for (std::size_t i = 0; i + 1 < all.size() && !fits(); ++i) {
    if (!fs::remove(all[i].path, error)) break;
    deleted.push_back(all[i].path);
  }
  return deleted;
}

void Checkpoints::written(std::int64_t step) const {
  if (keep_ == 1) return;
  const std::string second = numbered(step);
  // Of copies, whose names are as many as steps.
  AtomicFile::remove_leftovers(folder_of(path_).string(),
                               [this](std::string_view name) { return step_in(name).has_value(); });
  try {
    give_name(path_, second);
  } catch (const Error& error) {
    lockstep::detail::throw_error(
        fmt::format("[run] the checkpoint '{}' cannot be kept as '{}': {}", path_, second, error.what()));
  }
  // Neither what is of later steps nor what cannot be read takes the place of one that can be gone on from.
  const std::vector<Found> all = history_until(step);
  std::error_code error;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < all.size(); ++i) {
    fs::remove(all[i].path, error);
    LOCKSTEP_CHECK(!error, "[run] the old checkpoint '{}' cannot be deleted: {}", all[i].path, error.message());
  }
}

}  // namespace lockstep::training
