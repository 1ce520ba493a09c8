#include "lockstep/data/cifar.h"

#include <algorithm>
#include <cstddef>
#include <system_error>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/file_reader.h"
#include "lockstep/data/pixels.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPlane = std::size_t{32} * 32, kPixels = 3 * kPlane;

struct Variant {
  const char* name;
  const char* folder;
  const char* python_folder;  ///< of the version for Python, which is another format
  std::vector<std::string> train, test;
  std::int64_t label_bytes;
  int classes;
  CifarDataset::Channels mean, std;
};

const Variant& variant10() {
  static const Variant variant{
      .name = "CIFAR-10",
      .folder = "cifar-10-batches-bin",
      .python_folder = "cifar-10-batches-py",
      .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      .test = {"test_batch.bin"},
      .label_bytes = 1,
      .classes = 10,
      .mean = {0.4914f, 0.4822f, 0.4465f},
      .std = {0.2470f, 0.2435f, 0.2616f}};
  return variant;
}

const Variant& variant100() {
  static const Variant variant{.name = "CIFAR-100",
                               .folder = "cifar-100-binary",
                               .python_folder = "cifar-100-python",
                               .train = {"train.bin"},
                               .test = {"test.bin"},
                               .label_bytes = 2,
                               .classes = 100,
                               .mean = {0.5071f, 0.4865f, 0.4409f},
                               .std = {0.2673f, 0.2564f, 0.2762f}};
  return variant;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<fs::path> roots(const fs::path& directory) {
  if (!directory.empty()) return {directory};
  std::vector<fs::path> list;
  if (const auto data = environment_variable("LOCKSTEP_DATA")) list.emplace_back(*data);
  list.emplace_back("data");
  if (const auto home = environment_variable("HOME")) list.push_back(fs::path(*home) / ".cache" / "lockstep");
  return list;
}

/// The files of a set in the first place that has them all.
std::vector<fs::path> find_files(const Variant& variant, const fs::path& directory, bool train) {
  const std::vector<std::string>& names = train ? variant.train : variant.test;
  std::string looked, remedy = fmt::format("unpack {}'s binary version there", variant.name);
  for (const fs::path& root : roots(directory)) {
    for (const fs::path& place : {root, root / variant.folder}) {
      const auto lacking =
          std::ranges::find_if(names, [&](const std::string& name) { return !is_there(place / name); });
      if (lacking == names.end()) {
        std::vector<fs::path> files;
        for (const std::string& name : names) files.push_back(place / name);
        return files;
      }
      looked += fmt::format("{}'{}' ({})", looked.empty() ? "" : ", ", place.string(),
                            is_there(place) ? "has no " + *lacking : "no such directory");
    }
    if (is_there(root / variant.python_folder))
      remedy = fmt::format("'{}' is the version for Python: {}", (root / variant.python_folder).string(), remedy);
  }
  LOCKSTEP_CHECK(false, "[{}] no {} set found; looked in {}; {}", variant.name, train ? "training" : "test", looked,
                 remedy);
  return {};
}

std::shared_ptr<const CifarDataset> load(const Variant& variant, const fs::path& directory,
                                         const CifarOptions& options) {
  return std::make_shared<const CifarDataset>(find_files(variant, directory, options.train), variant.label_bytes,
                                              variant.classes, options.mean.value_or(variant.mean),
                                              options.std.value_or(variant.std));
}

}  // namespace

CifarDataset::CifarDataset(const std::vector<fs::path>& files, std::int64_t label_bytes, int classes,
                           const Channels& mean, const Channels& std)
    : mean_(mean), std_(std) {
  LOCKSTEP_CHECK(label_bytes >= 1 && classes >= 1 && classes <= 256,
                 "[CifarDataset] expected at least 1 label byte and 1 to 256 classes, found {} and {}", label_bytes,
                 classes);
  LOCKSTEP_CHECK(std::ranges::all_of(std, [](float value) { return value > 0.0f; }),
                 "[CifarDataset] std must be above 0, found {}, {}, {}", std[0], std[1], std[2]);
  std::vector<std::uint8_t> record(static_cast<std::size_t>(label_bytes) + kPixels);
  for (const fs::path& file : files) {
    FileReader reader(file);
    const std::size_t before = labels_.size();
    for (;;) {
      const std::uint64_t offset = reader.offset();
      const std::size_t found = reader.read(record);
      if (found == 0) break;
      LOCKSTEP_CHECK(found == record.size(),
                     "[CifarDataset] '{}': a record at offset {} has {} bytes; expected {}: the file is truncated or "
                     "of another format",
                     file.string(), offset, found, record.size());
      const int label = record[static_cast<std::size_t>(label_bytes) - 1];
      LOCKSTEP_CHECK(label < classes, "[CifarDataset] '{}': the label at offset {} is {}; expected 0 to {}",
                     file.string(), offset + static_cast<std::uint64_t>(label_bytes) - 1, label, classes - 1);
      labels_.push_back(static_cast<std::uint8_t>(label));
      images_.insert(images_.end(), record.begin() + label_bytes, record.end());
    }
    LOCKSTEP_CHECK(labels_.size() > before, "[CifarDataset] '{}' holds no images", file.string());
  }
  LOCKSTEP_CHECK(!labels_.empty(), "[CifarDataset] expected at least one file");
}

Batch CifarDataset::get_batch(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "CifarDataset");
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{.x = empty({count, 3, 32, 32}), .y = empty({count}, {.dtype = kInt64}), .global_size = count};
  const LibraryAccess access;
  float* x = batch.x.data<float>();
  std::int64_t* y = batch.y.data<std::int64_t>();
  for (const std::int64_t index : indices) {
    const auto i = static_cast<std::size_t>(index);
    for (std::size_t c = 0; c < 3; ++c, x += kPlane)
      normalize_pixels(std::span(images_).subspan(i * kPixels + c * kPlane, kPlane), mean_[c], std_[c], x);
    *y++ = labels_[i];
  }
  return batch;
}

std::string CifarDataset::content() const {
  return fmt::format("images {} labels {} mean {} {} {} std {} {} {}", checksum_digits(images_.data(), images_.size()),
                     checksum_digits(labels_.data(), labels_.size()), mean_[0], mean_[1], mean_[2], std_[0], std_[1],
                     std_[2]);
}

std::span<const std::uint8_t> CifarDataset::image(std::int64_t index) const {
  check_indices({&index, 1}, size(), "CifarDataset");
  return std::span(images_).subspan(static_cast<std::size_t>(index) * kPixels, kPixels);
}

int CifarDataset::label(std::int64_t index) const {
  check_indices({&index, 1}, size(), "CifarDataset");
  return labels_[static_cast<std::size_t>(index)];
}

std::shared_ptr<const CifarDataset> cifar10(const fs::path& directory, CifarOptions options) {
  return load(variant10(), directory, options);
}

std::shared_ptr<const CifarDataset> cifar100(const fs::path& directory, CifarOptions options) {
  return load(variant100(), directory, options);
}

}  // namespace lockstep::data
