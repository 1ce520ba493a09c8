// gpt_train: trains a GPT on a text, or fine-tunes one, on one device, several devices, or several processes. See
// --help.

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "apps/gpt/corpus.h"
#include "apps/gpt/generate.h"
#include "apps/gpt/mesh.h"
#include "apps/gpt/weights.h"
#include "lockstep/nn/optim/adam.h"
#include "lockstep/train/output.h"
#include "lockstep/train/program.h"
#include "lockstep/train/run.h"

namespace lockstep::apps {
namespace {

struct Options {
  std::string text, data, tokenizer, out;

  std::string preset = "nano", model;
  double dropout = 0.0;
  bool recompute = false;
  std::int64_t lora = 0;
  double lora_alpha = 16.0;
  std::string adapters;

  std::optional<double> lr;
  std::optional<double> min_lr;
  std::int64_t warmup = 100;
  double beta2 = 0.99, weight_decay = 0.1, clip = 1.0;

  gpt::MeshChoice mesh;

  std::int64_t evaluate_every = 250, evaluate_windows = 240, sample = 0;
};

void add_options(training::Program& program, Options& o) {
  program.add_option("--text", o.text, "The text; default: tinyshakespeare/input.txt in LOCKSTEP_DATA");
  program.add_option("--data", o.data, "Folder of gpt_tokenize, instead of a text");
  program.add_option("--tokenizer", o.tokenizer,
                     "Folder with vocab.json and merges.txt for the text; default: the model's, else a token a byte");
  program.add_option("--preset", o.preset, "Size of a new model, without --model", gpt::preset_names());
  program.add_option("--model", o.model, "Folder of a model to go on from, ours or transformers' (GPT-2, Llama)");
  program.add_option("--dropout", o.dropout, "Dropout of a GPT-2, below 1", 0.0, 1.0 - 1e-9);
  program.add_flag("--recompute", o.recompute,
                   "Keep the input of each block alone for backward: less memory, same bits");
  program.add_option("--lora", o.lora, "Train adapters of this rank beside the weights, which stay; 0: train all", 0.0);
  program.add_option("--lora-alpha", o.lora_alpha, "--lora: adapters count alpha / rank", 0.0);
  program.add_output("--adapters", o.adapters, "Write the adapters at the end");
  program.add_option("--lr", o.lr,
                     "Learning rate after warm-up; default: 0.002 for a new nano, 0.0006 for gpt2, else 0.001", 0.0);
  program.add_option("--min-lr", o.min_lr, "Learning rate at the end, along a cosine; default: a tenth of --lr", 0.0);
  program.add_option("--warmup", o.warmup, "Steps in which the learning rate rises from 0", 0.0);
  program.add_option("--beta2", o.beta2, "AdamW's, below 1", 0.0, 1.0 - 1e-9);
  program.add_option("--weight-decay", o.weight_decay, "AdamW's, for matrices; vectors have none", 0.0);
  program.add_option("--clip", o.clip, "Longest gradient; 0: any", 0.0);
  program.add_option(
      "--schedule", o.mesh.schedule,
      "Order in which the stages of --mesh compute their micro-batches, which are the logical shards, or "
      "the slices of --accumulate",
      {"gpipe", "1f1b", "interleaved", "zero-bubble"});
  program.add_option("--chunks", o.mesh.chunks,
                     "Runs of layers that a stage of an interleaved or zero-bubble schedule has", 1.0, 1024.0);
  program.add_flag(
      "--sequence-parallel", o.mesh.sequence_parallel,
      "Divide tokens too, where --mesh tensor=N divides layers: norms, dropout and activations between these");
  program.add_flag("--context-parallel", o.mesh.context_parallel,
                   "Divide tokens over the ranks of --mesh tensor=N instead of layers, for long sequences");
  program.add_option("--evaluate-every", o.evaluate_every, "Steps between evaluations", 1.0);
  program.add_option("--evaluate-windows", o.evaluate_windows,
                     "Windows of an evaluation, evenly spread over the validation text; 0: all, side by side", 0.0);
  program.add_option("--sample", o.sample, "Tokens to write after each evaluation", 0.0);
  program.add_output("--out", o.out, "Write the model as a folder for gpt_generate and transformers", true,
                     gpt::files_of_folder());
  program.let_ranks_differ({"--text", "--data", "--tokenizer"});
}

/// Of the model, as far as it is known without a tokenizer.
gpt::Config shape_of(const Options& o) {
  gpt::Config config = o.model.empty() ? gpt::preset(o.preset) : gpt::read_config(o.model + "/config.json");
  config.dropout = o.dropout;
  config.lora.rank = o.lora;
  return config;
}

/// An epoch: what lies between two evaluations.
std::int64_t steps_of_epoch(const Options& o, const training::RunOptions& run) {
  return std::min(o.evaluate_every, run.max_steps);
}

/// The smaller the model, the larger the steps it takes.
double learning_rate(const Options& o) {
  if (o.lr || !o.model.empty() || o.preset == "small") return o.lr.value_or(1e-3);
  return o.preset == "nano" ? 2e-3 : 6e-4;
}

void check(const training::Program& program, const Options& o, const training::WorkerOptions& workers,
           training::RunOptions& run) {
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) throw Error(message);
  };
  require(o.text.empty() || o.data.empty(), "--text and --data exclude each other");
  require(o.data.empty() || o.tokenizer.empty(), "--tokenizer belongs to --text; --data has its own");
  require(o.adapters.empty() || o.lora > 0, "--adapters belongs to --lora");
  require(!program.is_given("--lora-alpha") || o.lora > 0, "--lora-alpha belongs to --lora");
  require(!program.is_given("--preset") || o.model.empty(),
          "--preset is the size of a new model, and --model is one that exists; leave out one of them");
  require(o.min_lr.value_or(0.0) <= learning_rate(o),
          fmt::format("--min-lr {} is above the learning rate, {}, which falls to it; pass a larger --lr or a smaller "
                      "--min-lr",
                      o.min_lr.value_or(0.0), learning_rate(o)));
  require(o.lora == 0 || !o.model.empty(), "--lora belongs to --model: adapters go beside weights that exist");
  require(run.max_steps > 0, "expected --max-steps of at least 1");
  require(workers.mode != training::Mode::dp || o.lora == 0, "--lora needs --mode single or ddp");
  gpt::check_mesh(shape_of(o), workers, o.mesh);
  const std::int64_t steps = steps_of_epoch(o, run);
  constexpr std::int64_t kMostSamples = std::int64_t{1} << 28;  // of which there is a list in memory
  if (workers.batch_size > kMostSamples / steps)
    throw Error(
        fmt::format("{} steps between two evaluations of {} windows each are more than {} windows; pass a "
                    "smaller --evaluate-every or --batch-size",
                    steps, workers.batch_size, kMostSamples));
  run.epochs = (run.max_steps - 1) / steps + 1;
  run.settings = {{"model", o.model.empty() ? o.preset : o.model},
                  {"dropout", fmt::format("{}", o.dropout)},
                  {"lora", fmt::format("{}", o.lora)},
                  {"tensor_shards", fmt::format("{}{}", workers.tensor_shards,
                                                workers.tensor_shards == 0 ? ""
                                                : o.mesh.sequence_parallel ? " by tokens"
                                                : o.mesh.context_parallel  ? " with --context-parallel"
                                                                           : "")}};
}

gpt::Corpus open_corpus(const Options& o) {
  if (!o.data.empty()) return gpt::open_corpus(o.data);
  const std::string tokenizer = o.tokenizer.empty() ? o.model : o.tokenizer;
  return gpt::corpus_of_text(gpt::text_path(o.text), tokenizer, 0.1);
}

gpt::Config config_of(const Options& o, const gpt::Tokenizer& tokenizer) {
  gpt::Config config = o.model.empty() ? gpt::preset(o.preset) : gpt::read_config(o.model + "/config.json");
  if (o.model.empty()) config.vocabulary = tokenizer.size();
  if (tokenizer.size() > config.vocabulary)
    throw Error(fmt::format("the tokenizer has {} tokens, the model {}", tokenizer.size(), config.vocabulary));
  config.dropout = o.dropout;
  config.recompute = o.recompute;
  config.lora = {.rank = o.lora, .alpha = o.lora_alpha};
  return config;
}

std::unique_ptr<gpt::LanguageModel> make_model(const Options& o, const gpt::Config& config) {
  auto model = o.model.empty() ? gpt::LanguageModel::make(config) : gpt::make_from_folder(config, o.model);
  if (config.lora.rank > 0) gpt::train_adapters_only(*model);
  return model;
}

/// Weight decay is for matrices: what else there is are biases and the scales of norms.
std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, const std::vector<Tensor>& parameters) {
  const optim::AdamWOptions options{.lr = learning_rate(o), .beta2 = o.beta2, .weight_decay = o.weight_decay};
  optim::AdamWOptions plain = options;
  plain.weight_decay = 0.0;
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& p : parameters)
    if (p.requires_grad()) (p.dim() >= 2 ? matrices : vectors).push_back(p);
  using Group = optim::ParamGroup<optim::AdamWOptions>;
  return std::make_unique<optim::AdamW>(std::vector<Group>{{matrices, options}, {vectors, plain}});
}

optim::Schedule make_schedule(const Options& o, std::int64_t total_steps) {
  const std::int64_t warmup = std::min(o.warmup, total_steps - 1);
  const double lr = learning_rate(o);
  const optim::CosineAnnealing cosine{
      .lr = lr, .period = std::max<std::int64_t>(1, total_steps - warmup), .min_lr = o.min_lr.value_or(lr / 10)};
  if (warmup == 0) return cosine;
  return optim::LinearWarmup{.steps = warmup, .next = cosine};
}

gpt::LanguageModel& as_language_model(nn::Module& module) {
  return dynamic_cast<gpt::LanguageModel&>(module);
}

/// `loss`: the mean loss of windows.
training::Evaluation make_evaluation(
    const gpt::Corpus& corpus, std::int64_t context, std::int64_t windows,
    std::function<double(nn::Module&, const Tensor& tokens, const Tensor& targets)> loss) {
  const std::int64_t positions = corpus.validation->size() - context;
  const std::int64_t stride = windows > 0 ? std::max<std::int64_t>(1, positions / windows) : context;
  return {.dataset = std::make_shared<gpt::WindowDataset>(corpus.validation, context, stride),
          .names = {"validation loss"},
          .sums = [loss = std::move(loss)](nn::Module& module, const data::Batch& batch) {
            constexpr std::int64_t kPiece = 16;  // windows at a time
            double sum = 0;
            for (std::int64_t first = 0; first < batch.size(); first += kPiece) {
              const std::int64_t count = std::min(kPiece, batch.size() - first);
              sum += loss(module, batch.x.narrow(0, first, count), batch.y.narrow(0, first, count)) *
                     static_cast<double>(count);
            }
            return std::vector<double>{sum};
          }};
}

/// A text of the model as it is; less of it if the run is to end.
void print_sample(const training::Run& run, gpt::LanguageModel& model, const gpt::Tokenizer& tokenizer,
                  std::int64_t count) {
  const std::vector<std::int32_t> start = tokenizer.encode("\n");
  try {
    const auto tokens = gpt::generate(
        model, start, {.max_tokens = count, .temperature = 0.8, .go_on = [&run] { return !run.is_to_stop(); }});
    fmt::print("----\n{}\n----\n", tokenizer.decode(tokens));
  } catch (const Error& error) {  // the training goes on as it would without samples
    fmt::print("no sample: {}\n", error.what());
  }
  std::fflush(stdout);
}

data::DataLoader make_loader(const training::RunOptions& run, const Options& o, const training::Workers& workers,
                             const gpt::Corpus& corpus, std::int64_t context) {
  const auto windows = std::make_shared<gpt::WindowDataset>(corpus.training, context);
  const std::int64_t batch_size = workers.options().batch_size;
  return workers.make_loader(
      windows, {.sampler = std::make_shared<gpt::DrawingSampler>(windows->size(), steps_of_epoch(o, run) * batch_size,
                                                                 workers.options().seed)});
}

std::map<std::string, std::size_t> bytes_of_outputs(const Options& o, const gpt::SavedBytes& bytes) {
  return {{o.out, bytes.folder}, {o.adapters, bytes.adapters}};
}

/// What is left at the end, on rank 0.
void write_model(const Options& o, gpt::LanguageModel& model, const gpt::Corpus& corpus) {
  std::string lost;
  const auto write = [&](const std::string& what, const std::string& path,
                         const std::function<void(const std::string& path)>& save) {
    std::string failure;
    try {
      const std::string place = training::write_somewhere(path, save, failure);
      if (!failure.empty()) failure += fmt::format("; the {} are in '{}'", what, place);
    } catch (const Error&) {
      failure = fmt::format("the {} are lost: {}", what, failure);
    }
    if (!failure.empty()) lost += (lost.empty() ? "" : "; ") + failure;
  };
  if (!o.adapters.empty())
    write("adapters", o.adapters, [&](const std::string& path) { gpt::save_adapters(model, path); });
  if (!o.out.empty()) {
    gpt::merge_adapters(model);
    write("model's files", o.out.substr(0, std::max<std::size_t>(1, o.out.find_last_not_of('/') + 1)),
          [&](const std::string& path) { gpt::save_folder(path, model, corpus.tokenizer); });
  }
  if (!lost.empty()) throw training::UnwrittenError(lost);
}

/// On processes that are a grid, each with a part of the model.
int train_on_mesh(const Options& o, training::Workers& workers, training::RunOptions run_options,
                  const gpt::Corpus& corpus, const gpt::Config& config) {
  const data::DataLoader loader = make_loader(run_options, o, workers, corpus, config.context);
  gpt::MeshTraining training(
      workers, o.mesh, run_options.amp, [&] { return make_model(o, config); },
      [&](const std::vector<Tensor>& parameters) { return make_optimizer(o, parameters); });
  run_options.mesh = &training.whole();
  run_options.other_bytes = bytes_of_outputs(o, training.saved_bytes());
  training::Run run(
      training.step(), training.optimizer(), loader,
      [&](nn::Module& net, const data::Batch& part) { return training.loss(net, part); }, run_options);
  run.set_schedule(make_schedule(o, run.total_steps()));
  run.set_evaluation(make_evaluation(
      corpus, config.context, o.evaluate_windows,
      [&](nn::Module&, const Tensor& tokens, const Tensor& targets) { return training.evaluate(tokens, targets); }));
  if (o.clip > 0) run.callbacks().on_gradients = [&](std::int64_t) { training.clip(o.clip); };
  if (o.sample > 0)
    run.callbacks().on_evaluation = [&](std::int64_t, const training::Values&) {
      if (const auto model = training.gathered()) print_sample(run, *model, corpus.tokenizer, o.sample);
    };
  return run.train_and_write([&] {
    if (o.out.empty() && o.adapters.empty()) return;
    if (const auto model = training.gathered()) write_model(o, *model, corpus);
  });
}

int train_gpt(const Options& o, training::Workers& workers, training::RunOptions run_options) {
  const gpt::Corpus corpus = open_corpus(o);
  const gpt::Config config = config_of(o, corpus.tokenizer);
  run_options.units_per_sample = config.context;
  if (workers.mesh()) return train_on_mesh(o, workers, run_options, corpus, config);
  run_options.max_grad_norm = o.clip;
  const data::DataLoader loader = make_loader(run_options, o, workers, corpus, config.context);
  distributed::TrainingStep step = workers.make_step([&] { return make_model(o, config); });
  const auto optimizer = workers.make_optimizer(
      step, [&](const std::vector<Tensor>& parameters) { return make_optimizer(o, parameters); });
  const auto loss = [](nn::Module& net, const data::Batch& part) {
    return as_language_model(net).loss(part.x, part.y);
  };

  run_options.other_bytes = bytes_of_outputs(o, gpt::saved_bytes(as_language_model(step.module())));
  training::Run run(step, *optimizer, loader, loss, run_options);
  run.set_schedule(make_schedule(o, run.total_steps()));
  run.set_evaluation(make_evaluation(corpus, config.context, o.evaluate_windows,
                                     [](nn::Module& module, const Tensor& tokens, const Tensor& targets) {
                                       return as_language_model(module).loss(tokens, targets).item<double>();
                                     }));
  gpt::LanguageModel& model = as_language_model(step.module());
  if (o.sample > 0)
    run.callbacks().on_evaluation = [&](std::int64_t, const training::Values&) {
      if (workers.is_rank0()) print_sample(run, model, corpus.tokenizer, o.sample);
    };
  return run.train_and_write([&] {
    const distributed::WholeParameters whole = step.whole_parameters();
    if (workers.is_rank0()) write_model(o, model, corpus);
  });
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) {
  using namespace lockstep;
  apps::Options options;
  training::Program program("gpt_train",
                            "Trains a GPT on a text, or fine-tunes one, on one device, several devices, or several "
                            "processes.",
                            LOCKSTEP_VERSION);
  apps::add_options(program, options);
  program.add_mesh([&](int processes, const training::WorkerOptions& workers) {
    return gpt::choose_mesh(processes, apps::shape_of(options), workers, options.mesh);
  });
  program.workers().batch_size = 12;
  program.run().epochs = 0;
  program.run().max_steps = 2000;
  program.run().unit = "tokens";
  const auto check = [&](const training::WorkerOptions& workers, training::RunOptions& run) {
    apps::check(program, options, workers, run);
  };
  const auto body = [&](training::Workers& workers, const training::RunOptions& run) {
    return apps::train_gpt(options, workers, run);
  };
  return program.main(argc, argv, body, check);
}
