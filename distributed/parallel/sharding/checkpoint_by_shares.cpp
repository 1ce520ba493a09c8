#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/posix.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::distributed {
namespace {

constexpr std::uint64_t kRound = std::uint64_t{64} << 20;  // bytes of a rank between two signs of life
constexpr std::uint64_t kRead = std::uint64_t{1} << 20;

/// The file that rank 0 has made, in this process.
class OpenFile {
 public:
  OpenFile(std::string name, const std::string& header) : name_(std::move(name)) {
    descriptor_.reset(::open(name_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (!descriptor_) closed_because_ = std::generic_category().message(errno);
    std::string found(header.size(), 0);
    // Another machine may have another file of this name.
    if (descriptor_ && (!move_all(::pread, found.data(), found.size(), 0) || found != header)) descriptor_.reset();
  }
  bool is_open() const { return static_cast<bool>(descriptor_); }
  void write(std::uint64_t at, const void* data, std::uint64_t bytes) const {
    check_open();
    const FileSizeErrors errors_only;
    LOCKSTEP_CHECK(move_all(::pwrite, static_cast<const char*>(data), bytes, at), "cannot write {}: {}", name_,
                   std::generic_category().message(errno));
  }
  /// For readers on other machines.
  void sync() const {
    check_open();
    LOCKSTEP_CHECK(::fdatasync(descriptor_.get()) == 0, "cannot write {}: {}", name_,
                   std::generic_category().message(errno));
  }
  void read(std::uint64_t at, void* data, std::uint64_t bytes) const {
    check_open();
    LOCKSTEP_CHECK(move_all(::pread, static_cast<char*>(data), bytes, at), "cannot read {}: {}", name_,
                   std::generic_category().message(errno));
  }

 private:
  void check_open() const { LOCKSTEP_CHECK(descriptor_, "cannot open {}: {}", name_, closed_because_); }

  template <typename Move, typename Byte>
  bool move_all(Move move, Byte* data, std::uint64_t bytes, std::uint64_t at) const {
    while (bytes > 0) {
      const ssize_t n = move(descriptor_.get(), data, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (n == 0) errno = EIO;
        return false;
      }
      data += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::uint64_t>(n);
    }
    return true;
  }

  std::string name_;
  FileDescriptor descriptor_;
  std::string closed_because_ = "it is not the file that rank 0 has begun";
};

/// What a rank does of the work on a file, in pieces, of which the ranks tell each other: a deadline is that of one
/// piece. `piece` does up to kRound bytes and says whether there is more. What one throws is thrown on all.
void work_together(ProcessGroup& group, const std::string& path, const std::function<bool()>& piece) {
  static const OperationLabel label("parts of a checkpoint");
  const LabelScope scope(label);
  std::string failure;
  for (bool more = true;;) {
    try {
      more = more && piece();
    } catch (const std::exception& error) {
      failure = *error.what() != '\0' ? error.what() : "it failed without a message";
      more = false;
    }
    const Tensor signs = tensor({std::int64_t{more}, std::int64_t{!failure.empty()}});
    group.all_reduce(signs, ReduceOp::max)->wait();
    const std::vector<std::int64_t> all = signs.to_vector<std::int64_t>();
    if (all[1] != 0) break;
    if (all[0] == 0) return;
  }
  const std::vector<std::string> failures = group.all_gather_object(failure);
  for (std::size_t r = 0; r < failures.size(); ++r)
    LOCKSTEP_CHECK(failures[r].empty(), "[checkpoint] rank {} could not write its part of {}: {}", r, path,
                   failures[r]);
}

std::vector<PartOfCheckpoint> parts_here(const nn::detail::SafetensorsLayout& layout, const nn::Module& module,
                                         const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                         const ProcessGroup& group) {
  std::vector<PartOfCheckpoint> parts;
  const auto add = [&](const auto& found, std::int64_t begin, const Tensor& values) {
    LOCKSTEP_ASSERT(found != layout.ordered.end(), "a tensor of the checkpoint has no place");
    parts.push_back({layout.offsets[static_cast<std::size_t>(found - layout.ordered.begin())] +
                         static_cast<std::uint64_t>(begin) * element_size(values.dtype()),
                     values});
  };
  const auto place_of = [&](const std::string& name) {
    return std::ranges::find(layout.ordered, name, &nn::NamedTensor::name);
  };
  const auto place_of_tensor = [&](const Tensor& tensor) {
    return std::ranges::find_if(layout.ordered, [&](const auto& each) { return each.tensor.is_same(tensor); });
  };
  const bool is_root = group.rank() == 0;
  if (const auto shards = ParameterShards::of(module)) {
    shards->visit_own([&](const Tensor& parameter, std::int64_t begin, const Tensor& values) {
      const auto place = place_of_tensor(parameter);
      if (place != layout.ordered.end()) add(place, begin, values);  // else of another part of the step's module
    });
  } else {  // all ranks have the same
    int turn = 0;
    for (const Tensor& parameter : module.parameters())
      if (turn++ % group.world_size() == group.rank()) add(place_of_tensor(parameter), 0, parameter);
  }
  if (is_root)
    for (const Tensor& buffer : module.buffers()) add(place_of_tensor(buffer), 0, buffer);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::string prefix = std::string(nn::kOptimizerPrefix) + (i == 0 ? "" : std::to_string(i) + ".");
    const auto* const sharded = dynamic_cast<const ZeroRedundancyOptimizer*>(&optimizers[i].get());
    if (sharded)
      sharded->visit_state([&](const std::string& name, std::int64_t begin, const Tensor& values) {
        add(place_of(prefix + name), begin, values);
      });
    for (const auto& [name, value] : layout.ordered) {
      const bool is_small = name == prefix + "steps" || name == prefix + optim::OptimizerState::kGroups;
      if (is_root && sharded && is_small) add(place_of(name), 0, value);
    }
    if (is_root && !sharded)
      for (const auto& [name, value] : optimizers[i].get().state().tensors) add(place_of(prefix + name), 0, value);
  }
  return parts;
}

void write_parts(const std::vector<PartOfCheckpoint>& parts, const OpenFile& file, ProcessGroup& group,
                 const std::string& path, const std::string& failed_before) {
  auto next = parts.begin();
  std::uint64_t done = 0;  // of the next one's bytes
  work_together(group, path, [&] {
    if (!failed_before.empty()) throw Error(failed_before);
    for (std::uint64_t round = 0; next != parts.end() && round < kRound;) {
      const Tensor values = as_contiguous(move_values(next->values.detach(), Device()));
      const LibraryAccess access;
      const std::uint64_t bytes = std::min<std::uint64_t>(values.nbytes() - done, kRound);
      file.write(next->at + done, static_cast<const std::byte*>(values.raw_data()) + done, bytes);
      round += bytes;
      done += bytes;
      if (done < values.nbytes()) continue;
      done = 0;
      ++next;
    }
    file.sync();
    return next != parts.end();
  });
}

/// Of all tensors, from what stands in the file; each rank reads some. Whole on rank 0.
std::string checksums_of(const nn::detail::SafetensorsLayout& layout, const OpenFile& file, ProcessGroup& group,
                         const std::string& path) {
  const auto world = static_cast<std::size_t>(group.world_size());
  std::size_t next = static_cast<std::size_t>(group.rank());
  std::uint64_t at = 0;
  Checksum checksum;
  std::string own;
  std::vector<std::byte> bytes(kRead);
  work_together(group, path, [&] {
    for (std::uint64_t round = 0; next < layout.ordered.size() && round < kRound;) {
      const std::uint64_t size = layout.offsets[next + 1] - layout.offsets[next], some = std::min(size - at, kRead);
      file.read(layout.offsets[next] + at, bytes.data(), some);
      checksum.update(bytes.data(), some);
      round += some;
      at += some;
      if (at < size) continue;
      own += fmt::format("{:016x}", checksum.value());
      checksum = {};
      at = 0;
      next += world;
    }
    return next < layout.ordered.size();
  });
  const std::vector<std::string> all = group.all_gather_object(own);
  std::string digits;
  for (std::size_t i = 0; i < layout.ordered.size(); ++i)
    digits += all[i % world].substr(i / world * kChecksumDigits, kChecksumDigits);
  return digits;
}

}  // namespace

void check_optimizers(const std::string& path, const nn::Module& module,
                      const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers, ProcessGroup& group) {
  static const OperationLabel label(
      "save_checkpoint(), which every rank must call: whether its optimizers are of its module");
  const LabelScope scope(label);
  std::string failure;
  if (optimizers.empty()) failure = "there is no optimizer to write to " + path;
  const std::vector<Tensor> known = module.parameters();
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    const std::vector<Tensor>& parameters = optimizers[o].get().parameters();
    for (std::size_t i = 0; i < parameters.size() && failure.empty(); ++i)
      if (std::ranges::none_of(known, [&](const Tensor& each) { return each.is_same(parameters[i]); }))
        failure = fmt::format(
            "parameter {} of shape {} of optimizer {} ({}) is none of the module that {} is to hold; pass the module "
            "whose parameters() the optimizer was made with",
            i, to_string(parameters[i].sizes()), o, optimizers[o].get().name(), path);
  }
  for (const std::string& each : group.all_gather_object(failure))
    LOCKSTEP_CHECK(each.empty(), "[checkpoint] {}", each);
}

std::unique_ptr<CheckpointByShares> CheckpointByShares::begin(
    const std::string& path, const nn::Module& module,
    const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers, const nn::TrainingState& state,
    ProcessGroup& group, const std::vector<const optim::Scheduler*>& schedulers) {
  const NoGradGuard values_only;
  bool divided = ParameterShards::of(module) != nullptr;
  for (optim::Optimizer& each : optimizers) divided = divided || dynamic_cast<ZeroRedundancyOptimizer*>(&each);
  if (!divided || group.world_size() == 1) return nullptr;
  std::vector<optim::OptimizerState> states;
  for (optim::Optimizer& each : optimizers) {
    const auto* const sharded = dynamic_cast<const ZeroRedundancyOptimizer*>(&each);
    states.push_back(sharded ? sharded->outline() : each.state());
  }
  const auto [tensors, metadata] = nn::detail::checkpoint_content(module, states, state, schedulers);
  std::unique_ptr<CheckpointByShares> made(new CheckpointByShares);
  made->path_ = path;
  made->layout_ = nn::detail::lay_out_safetensors(tensors, path, metadata);
  try {
    on_rank0(group, [&] {
      nn::require_no_later_checkpoint(path, state.step);
      made->whole_ = std::make_unique<AtomicFile>(path, /*named=*/true);
      made->whole_->reserve(made->layout_.offsets.back());
      made->whole_->write(made->layout_.header.data(), made->layout_.header.size());
      made->whole_->resize(made->layout_.offsets.back());
    });
    made->name_ = group.broadcast_object(made->whole_ ? std::filesystem::absolute(made->whole_->temporary()).string()
                                                      : std::string());
    const Tensor all_see = tensor({std::int64_t{OpenFile(made->name_, made->layout_.header).is_open()}});
    group.all_reduce(all_see, ReduceOp::min)->wait();
    if (all_see.item<std::int64_t>() == 0) return nullptr;
    made->parts_ = parts_here(made->layout_, module, optimizers, group);
    return made;
  } catch (...) {
    made->give_up();
    throw;
  }
}

CheckpointByShares::~CheckpointByShares() = default;

Tensor copy_on_cpu(const Tensor& values) {
  return values.device().is_cuda() ? move_values(values.detach(), Device()) : copy_contiguous(values.detach());
}

// Where nobody catches what is thrown, the program ends without a destructor, and the file would be left, on a full
// disk too.
void CheckpointByShares::give_up() {
  whole_.reset();
}

void CheckpointByShares::copy_values() {
  const NoGradGuard values_only;
  for (PartOfCheckpoint& part : parts_) part.values = copy_on_cpu(part.values);
}

void CheckpointByShares::fail(const std::string& why) {
  parts_.clear();
  failure_ = why.empty() ? "it failed without a message" : why;
}

void CheckpointByShares::write(ProcessGroup& group) {
  const NoGradGuard values_only;
  try {
    write_parts(parts_, OpenFile(name_, layout_.header), group, path_, failure_);
    // Opened anew: a network's file system shows what others have written from then on.
    std::string checksums = checksums_of(layout_, OpenFile(name_, layout_.header), group, path_);
    on_rank0(group, [&] {
      checksums.insert(0, checksum_digits(layout_.header.data(), layout_.header.size()));
      whole_->write_at(nn::detail::place_of_checksums(layout_.header), checksums.data(), checksums.size());
      whole_->commit();
    });
  } catch (...) {
    give_up();
    throw;
  }
}

bool save_checkpoint_by_shares(const std::string& path, const nn::Module& module,
                               const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                               const nn::TrainingState& state, ProcessGroup& group,
                               const std::vector<const optim::Scheduler*>& schedulers) {
  const auto shares = CheckpointByShares::begin(path, module, optimizers, state, group, schedulers);
  if (shares) shares->write(group);
  return shares != nullptr;
}

}  // namespace lockstep::distributed
