#include "lockstep/distributed/parallel/averaged_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kPrefix = "average.";
constexpr const char* kUpdates = "average_updates";

DType dtype_of_average(DType dtype) {
  return is_floating_point(dtype) && element_size(dtype) < 4 ? kFloat32 : dtype;
}

}  // namespace

AveragedWeights::AveragedWeights(nn::Module& module, double decay, AveragedWeightsOptions options)
    : AveragedWeights(
          module, [decay](std::int64_t) { return decay; }, options) {
  LOCKSTEP_CHECK(decay >= 0.0 && decay <= 1.0, "[AveragedWeights] expected a decay from 0 to 1, found {}", decay);
}

AveragedWeights::AveragedWeights(nn::Module& module, optim::Schedule decay, AveragedWeightsOptions options)
    : decay_(std::move(decay)), shards_(ParameterShards::of(module)) {
  LOCKSTEP_CHECK(decay_, "[AveragedWeights] the decay is an empty function");
  const NoGradGuard values_only;
  for (nn::NamedTensor& each : module.named_parameters())
    if (each.tensor.requires_grad()) parameters_.push_back(std::move(each));
  first_buffer_ = parameters_.size();
  if (options.use_buffers)
    for (nn::NamedTensor& each : module.named_buffers()) parameters_.push_back(std::move(each));
  for (std::size_t p = shards_ ? first_buffer_ : 0; p < parameters_.size(); ++p) add(p, 0, {});
  if (!shards_) return;
  shards_->check_divided("[AveragedWeights] one was made");
  shards_->visit_own([this](const Tensor& parameter, std::int64_t begin, const Tensor& values) {
    for (std::size_t p = 0; p < first_buffer_; ++p)
      if (parameters_[p].tensor.is_same(parameter)) add(p, begin, values);
  });
}

AveragedWeights::~AveragedWeights() = default;

void AveragedWeights::add(std::size_t parameter, std::int64_t begin, const Tensor& share) {
  Piece piece{parameter, begin, share, {}, {}, 0};
  const Tensor values = values_of(piece);
  if (values.numel() == 0) return;  // another stage's
  const DType dtype = dtype_of_average(values.dtype());
  piece.average = dtype == values.dtype() ? copy_contiguous(values) : cast_values(values, dtype);
  pieces_.push_back(std::move(piece));
}

Tensor AveragedWeights::values_of(const Piece& piece) const {
  return piece.share.defined() ? piece.share : parameters_[piece.parameter].tensor.detach();
}

optim::Schedule AveragedWeights::equal() {
  return [](std::int64_t n) { return static_cast<double>(n) / static_cast<double>(n + 1); };
}

void AveragedWeights::check_not_held(const char* what) const {
  LOCKSTEP_CHECK(!held_, "[AveragedWeights] {} was called while the averages are held; let go of them before", what);
}

void AveragedWeights::check_whole(const char* what) const {
  std::vector<Tensor> tensors;
  for (const nn::NamedTensor& each : parameters_) tensors.push_back(each.tensor);
  LOCKSTEP_CHECK(!optim::detail::has_gradients_of(tensors, optim::detail::GradientsInParts::Kind::part),
                 "[AveragedWeights] {} was called for a model that TensorParallel or PipelineParallel have divided, of "
                 "which this rank has a part; save MeshModel::whole() while the averages are held",
                 what);
}

void AveragedWeights::update() {
  check_not_held("update()");
  const double decay = updates_ == 0 ? 0.0 : decay_(updates_);
  LOCKSTEP_CHECK(decay >= 0.0 && decay <= 1.0, "[AveragedWeights] expected a decay from 0 to 1, found {} in update {}",
                 decay, updates_);
  const NoGradGuard values_only;
  for (const Piece& piece : pieces_) {
    const Tensor values = values_of(piece);
    const Tensor now = values.dtype() == piece.average.dtype() ? values : cast_values(values, piece.average.dtype());
    if (updates_ == 0 || !now.is_floating_point())
      copy_values(now, piece.average);
    else
      piece.average.lerp_(now, 1.0 - decay);
  }
  ++updates_;
}

void AveragedWeights::write_averages() {
  const NoGradGuard values_only;
  if (shards_) shards_->check_divided("[AveragedWeights] hold() was called");
  try {
    for (Piece& piece : pieces_) piece.kept = copy_contiguous(values_of(piece));
    for (Piece& piece : pieces_) {
      const Tensor values = values_of(piece);
      copy_values(piece.average, values);
      values.storage()->bump_version();
    }
    for (Piece& piece : pieces_) piece.written = values_of(piece).storage()->version();  // several may share memory
  } catch (...) {
    put_back();
    throw;
  }
  if (shards_) shards_->on_update();
  held_ = true;
}

// Of divided parameters, which are written anew by everybody who has made them whole, only the values tell.
bool AveragedWeights::was_written(const Piece& piece) const {
  const Tensor values = values_of(piece);
  if (!piece.share.defined()) return values.storage()->version() != piece.written;
  const Tensor average =
      values.dtype() == piece.average.dtype() ? piece.average : cast_values(piece.average, values.dtype());
  const Tensor found = as_contiguous(move_values(values, Device(kCPU)));
  const Tensor expected = as_contiguous(move_values(average, Device(kCPU)));
  return std::memcmp(found.raw_data(), expected.raw_data(), found.nbytes()) != 0;
}

// Under whole_parameters(), whose values would replace these, once more at their end.
void AveragedWeights::put_back() {
  const NoGradGuard values_only;
  const bool changed = held_ && std::ranges::any_of(pieces_, [&](const Piece& piece) { return was_written(piece); });
  if (changed)
    logging::warn(
        "[AveragedWeights] parameters were written while the averages were held, by a step of training or from a "
        "checkpoint; what was written is lost, since they have their own values again. Let go of the averages before");
  for (Piece& piece : pieces_) {
    const Tensor kept = std::exchange(piece.kept, {});
    if (!kept.defined()) continue;
    const auto write = [kept, values = values_of(piece)] {
      copy_values(kept, values);
      values.storage()->bump_version();
    };
    write();
    if (shards_) shards_->when_divided(write);
  }
  if (shards_) shards_->on_update();
  held_ = false;
}

AveragedWeights::Held::Held(AveragedWeights& owner) : owner_(&owner) {
  owner.check_not_held("hold()");
  owner.write_averages();
}

AveragedWeights::Held::Held(Held&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}

AveragedWeights::Held::~Held() {
  if (owner_) owner_->put_back();
}

AveragedWeights::Held AveragedWeights::hold() {
  return Held(*this);
}

std::vector<nn::NamedTensor> AveragedWeights::state() {
  check_whole("state()");
  const NoGradGuard values_only;
  std::vector<nn::NamedTensor> all;
  for (const auto& [name, parameter] : parameters_)
    all.push_back({kPrefix + name, full(parameter.sizes(), -0.0,
                                        {.dtype = dtype_of_average(parameter.dtype()), .device = parameter.device()})});
  for (const Piece& piece : pieces_) {
    const Tensor& whole = all[piece.parameter].tensor;
    copy_values(piece.average.reshape({-1}), elements_of(whole, piece.begin, piece.average.numel()));
  }
  if (shards_ && shards_->group().world_size() > 1) {
    static const OperationLabel label("averaged weights");
    const LabelScope scope(label);
    const Tensor counts = tensor({updates_, -updates_});
    shards_->group().all_reduce(counts, ReduceOp::max)->wait();
    const std::vector<double> most = counts.to_vector<double>();
    LOCKSTEP_CHECK(most[0] == -most[1],
                   "[AveragedWeights] state() expected as many calls of update() on all ranks, found {:.0f} on one and "
                   "{:.0f} on another, here {}; call update() on every rank after each step",
                   -most[1], most[0], updates_);
    // One rank has each element, and x + -0.0 is x, of zeros the sign too.
    for (std::size_t p = 0; p < first_buffer_; ++p)
      if (all[p].tensor.numel() > 0) shards_->group().all_reduce(all[p].tensor)->wait();
  }
  all.push_back({kUpdates, tensor({updates_})});
  return all;
}

void AveragedWeights::load(const nn::SafetensorsFile& file) {
  check_not_held("load()");
  check_whole("load()");
  const NoGradGuard values_only;
  const auto name_of = [&](std::size_t p) {
    return std::string(nn::kExtraTensorPrefix) + kPrefix + parameters_[p].name;
  };
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& parameter = parameters_[p].tensor;
    const auto found = std::ranges::find(file.entries(), name_of(p), &nn::SafetensorsEntry::name);
    LOCKSTEP_CHECK(found != file.entries().end(),
                   "[AveragedWeights] {} holds no average of '{}'; save it with AveragedWeights::state() as "
                   "TrainingState::tensors",
                   file.path(), parameters_[p].name);
    LOCKSTEP_CHECK(found->shape == parameter.sizes() && found->dtype == dtype_of_average(parameter.dtype()),
                   "[AveragedWeights] the average of '{}' in {} is {} {}, expected {} {}", parameters_[p].name,
                   file.path(), lockstep::name(found->dtype), to_string(found->shape),
                   lockstep::name(dtype_of_average(parameter.dtype())), to_string(parameter.sizes()));
  }
  const std::int64_t updates = nn::read_extra_tensor(file, kUpdates).item<std::int64_t>();
  std::vector<Tensor> read;
  for (const Piece& piece : pieces_)
    read.push_back(file.read(name_of(piece.parameter), piece.begin, piece.average.numel()));
  for (std::size_t i = 0; i < read.size(); ++i)
    copy_values(read[i].view(pieces_[i].average.sizes()), pieces_[i].average);
  updates_ = updates;
}

}  // namespace lockstep::distributed
