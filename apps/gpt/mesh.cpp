#include "apps/gpt/mesh.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::gpt {
namespace {

/// Into how many parts layers are divided.
std::int64_t parts_of(const training::WorkerOptions& workers) {
  return std::max<std::int64_t>(workers.tensor_shards, workers.mesh ? workers.mesh->tensor : 1);
}

}  // namespace

void check_mesh(const Config& config, const training::WorkerOptions& workers, const MeshChoice& choice) {
  using distributed::PipelineSchedule;
  const PipelineSchedule schedule = distributed::parse_pipeline_schedule(choice.schedule);
  LOCKSTEP_CHECK(choice.chunks > 1 ? may_interleave(schedule) : schedule != PipelineSchedule::interleaved,
                 "--chunks {} does not go with --schedule {}; expected 2 or more with interleaved, 1 or more with "
                 "zero-bubble, 1 with the others",
                 choice.chunks, choice.schedule);
  LOCKSTEP_CHECK(!(choice.sequence_parallel && choice.context_parallel),
                 "--sequence-parallel and --context-parallel exclude each other");
  LOCKSTEP_CHECK(choice.tokens() == DividedTokens::none || (workers.mesh && parts_of(workers) > 1),
                 "{} divides tokens over the ranks of --mesh tensor=N; pass --mesh with tensor above 1, or "
                 "--lockstep-tensor",
                 choice.tokens() == DividedTokens::everywhere ? "--context-parallel" : "--sequence-parallel");
  if (!workers.mesh) {
    LOCKSTEP_CHECK(!may_interleave(schedule), "--schedule {} belongs to --mesh", choice.schedule);
    return;
  }
  const std::int64_t stages = workers.mesh->pipeline, links = config.layers + 2, parts = parts_of(workers);
  LOCKSTEP_CHECK(stages * choice.chunks <= links,
                 "--mesh {} does not fit the model: its {} blocks, embeddings and last norm are {} layers, fewer than "
                 "the {} that {} stage(s) of {} chunk(s) need",
                 to_string(*workers.mesh), config.layers, links, stages * choice.chunks, stages, choice.chunks);
  const auto divides = [&](std::int64_t count, const char* what) {
    LOCKSTEP_CHECK(count % parts == 0, "the model does not fit: its {} {} cannot be divided evenly into {} parts",
                   count, what, parts);
  };
  divides(config.heads, "heads");
  if (config.family == Family::llama) divides(config.kv_heads, "heads of keys and values");
  LOCKSTEP_CHECK(config.feedforward >= parts || choice.tokens() == DividedTokens::everywhere,
                 "the model does not fit: its {} inner features of a block are fewer than {} parts", config.feedforward,
                 parts);
  if (choice.tokens() != DividedTokens::none) divides(config.context, "tokens of a context");
  LOCKSTEP_CHECK(parts == 1 || config.lora.rank == 0,
                 "--lora does not go together with divided layers (tensor or --lockstep-tensor above 1)");
}

distributed::MeshSizes choose_mesh(int processes, const Config& config, const training::WorkerOptions& workers,
                                   const MeshChoice& choice) {
  const std::int64_t most = workers.logical_shards > 0 ? workers.logical_shards : workers.batch_size;
  const int largest = static_cast<int>(std::min<std::int64_t>(processes, most));
  for (int data = largest; data >= 1; --data) {
    if (processes % data != 0) continue;
    const int rest = processes / data;
    for (int pipeline = rest; pipeline >= 1; --pipeline) {
      if (rest % pipeline != 0) continue;
      training::WorkerOptions tried = workers;
      tried.mesh = distributed::MeshSizes{.data = data, .pipeline = pipeline, .tensor = rest / pipeline};
      if (workers.logical_shards > 0 && tried.mesh->tensor > 1 &&
          (workers.tensor_shards == 0 || workers.tensor_shards % tried.mesh->tensor != 0))
        continue;
      try {
        check_mesh(config, tried, choice);
        return *tried.mesh;
      } catch (const Error&) {
        continue;
      }
    }
  }
  throw Error(fmt::format("--mesh auto: no mesh of {} process(es) fits the model; use another number", processes));
}

MeshTraining::MeshTraining(const training::Workers& workers, const MeshChoice& choice, DType autocast,
                           ModelFactory make_model, distributed::MeshModel::OptimizerFactory make_optimizer) {
  const distributed::Mesh& mesh = *workers.mesh();
  model_ = make_model();
  saved_bytes_ = gpt::saved_bytes(*model_);
  const Config& config = model_->config();
  if (const std::int64_t parts = parts_of(workers.options()); parts > 1) {
    divided_.emplace(
        *model_, model_->tensor_plan(parts, choice.tokens()),
        distributed::TensorParallelOptions{.group = mesh.tensor(),
                                           .logical_shards = workers.options().tensor_shards,
                                           .sequence_parallel = choice.tokens() == DividedTokens::between_layers,
                                           .context_parallel = choice.tokens() == DividedTokens::everywhere});
    model_->set_divided(*divided_);
  }
  if (mesh.sizes().pipeline > 1)
    pipeline_.emplace(
        *model_, model_->layers(),
        distributed::PipelineParallelOptions{.group = mesh.pipeline(),
                                             .schedule = distributed::parse_pipeline_schedule(choice.schedule),
                                             .chunks = static_cast<int>(choice.chunks),
                                             .recompute = config.recompute,
                                             .autocast = autocast});
  whole_.emplace(*model_, mesh, pipeline_ ? &*pipeline_ : nullptr, divided_ ? &*divided_ : nullptr, make_model,
                 std::move(make_optimizer));
  step_.emplace(workers.make_step(*model_, pipeline_ ? pipeline_->part() : nullptr));
  optimizer_ = whole_->make_optimizer();
  using Divided = distributed::ZeroRedundancyOptimizer;
  if (workers.options().zero == 1)
    optimizer_ = std::make_unique<Divided>(std::move(optimizer_), mesh.data());
  else if (workers.options().zero > 1)
    optimizer_ = std::make_unique<Divided>(std::move(optimizer_), *step_);
}

double MeshTraining::evaluate(const Tensor& tokens, const Tensor& targets) const {
  if (!pipeline_) return model_->loss(tokens, targets).item<double>();
  return pipeline_
      ->evaluate(tokens,
                 [&](const Tensor& hidden) { return std::vector{model_->loss_of(hidden, targets).item<double>()}; })
      .front();
}

std::unique_ptr<LanguageModel> MeshTraining::gathered() const {
  std::unique_ptr<nn::Module> module = whole_->whole();
  return std::unique_ptr<LanguageModel>(dynamic_cast<LanguageModel*>(module.release()));
}

}  // namespace lockstep::gpt
