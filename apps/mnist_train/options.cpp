#include "apps/mnist_train/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "apps/models/models.h"
#include "apps/support/cli.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"

namespace lockstep::apps {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw UsageError(message);
}

std::vector<Device> parse_devices(const std::string& text, DeviceType type) {
  std::vector<Device> devices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    char* rest = nullptr;
    const long index = std::strtol(item.c_str(), &rest, 10);
    require(!item.empty() && *rest == '\0' && index >= 0 && index < 1024,
            fmt::format("--devices '{}' is not understood; expected indices such as 0,1", text));
    devices.emplace_back(type, static_cast<int>(index));
    begin = end + 1;
  }
  return devices;
}

void refuse_what_is_missing(const TrainOptions& options, const std::string& tensorboard) {
  if (options.device == "cuda" && !cuda::is_available())
    throw_not_available("--device cuda", cuda::is_built() ? "machine" : "build",
                        fmt::format("{}; use --device cpu", cuda::why_unavailable()));
  const std::vector<std::string> backends = distributed::available_backends();
  if (options.backend != "auto" && std::find(backends.begin(), backends.end(), options.backend) == backends.end())
    throw_not_available("--backend " + options.backend, "build",
                        options.backend == "nccl"  ? "build it with CUDA and NCCL's header, or use --backend auto"
                        : options.backend == "mpi" ? "install libopenmpi-dev and build again, or use --backend auto"
                                                   : "install libgloo-dev and build again, or use --backend auto");
  if (!tensorboard.empty()) throw_not_available("--tensorboard", "version", "use --metrics FILE.jsonl");
}

// "auto" is settled once, before anything is started.
std::string settled_device(const TrainOptions& options) {
  if (options.device != "auto") return options.device;
  return cuda::is_available() && (options.backend == "auto" || options.backend == "nccl") ? "cuda" : "cpu";
}

std::vector<Device> all_cuda_devices() {
  std::vector<Device> devices;
  for (int i = 0; i < cuda::device_count(); ++i) devices.emplace_back(kCUDA, i);
  return devices;
}

void check_lockstep(const TrainOptions& options) {
  const std::int64_t v = options.lockstep;
  require(v > 0 && v <= (1 << 20) && (v & (v - 1)) == 0,
          fmt::format("--lockstep {} is not a power of two; expected 1, 2, 4, 8 ...", v));
  const auto workers = options.mode == Mode::dp ? static_cast<std::int64_t>(options.devices.size()) : options.nproc;
  require(workers <= v, fmt::format("--lockstep {} cannot be shared by {} workers; expected at least as many logical "
                                    "shards as workers",
                                    v, workers));
  require(options.compress == "none",
          fmt::format("--compress {} cannot be used with --lockstep, whose bits come from one fixed order of additions",
                      options.compress));
  require(!options.sync_batch_norm,
          "--sync-batch-norm cannot be used with --lockstep, in which each logical shard is normalised alone");
  require(options.accumulate == 1,
          "--accumulate is implied by --lockstep, which accumulates over the logical shards; "
          "raise --lockstep for smaller slices");
  require(v <= options.batch_size,
          fmt::format("--lockstep {} is more than --batch-size {}; expected at least one sample for each logical shard",
                      v, options.batch_size));
}

void check(const TrainOptions& options) {
  require(options.batch_size >= 1, fmt::format("--batch-size {} is not positive", options.batch_size));
  require(options.epochs >= 1, fmt::format("--epochs {} is not positive", options.epochs));
  require(options.max_steps >= 0, fmt::format("--max-steps {} is negative", options.max_steps));
  require(options.timeout_s > 0 && options.timeout_s <= 86400,
          fmt::format("--timeout {} is out of range; expected seconds, above 0 and at most 86400", options.timeout_s));
  require(options.nproc >= 0 && options.nproc <= 1024, fmt::format("--nproc {} is out of range", options.nproc));
  require(options.threads >= 0 && options.threads <= 1024,
          fmt::format("--threads {} is out of range; expected 1 to 1024", options.threads));
  require(std::isfinite(options.learning_rate()) && options.learning_rate() >= 0,
          fmt::format("--lr {} is not a learning rate", options.learning_rate()));
  require(options.momentum >= 0 && options.momentum < 1,
          fmt::format("--momentum {} is out of range; expected 0 <= momentum < 1", options.momentum));
  require(options.accumulate >= 1 && options.accumulate <= options.batch_size,
          fmt::format("--accumulate {} is out of range; expected 1 to --batch-size {}", options.accumulate,
                      options.batch_size));
  require(options.compress == "none" || options.mode == Mode::ddp, "--compress belongs to --mode ddp");
  require(!options.sync_batch_norm || options.mode == Mode::ddp, "--sync-batch-norm belongs to --mode ddp");
  require(!options.sync_batch_norm || options.model == "lenet-bn",
          fmt::format("--sync-batch-norm needs a model with batch norm, which {} has not; use --model lenet-bn",
                      options.model));
  require(!options.zero || options.mode == Mode::ddp, "--zero belongs to --mode ddp");
  require(options.checkpoint_every >= 0, "--checkpoint-every is negative");
  require(options.resume != "auto" || !options.checkpoint.empty(), "--resume auto needs --checkpoint FILE");
  require(options.checkpoint_every == 0 || !options.checkpoint.empty(), "--checkpoint-every needs --checkpoint FILE");
  require(options.nproc == 0 || options.mode == Mode::ddp, "--nproc belongs to --mode ddp");
  require(options.mode == Mode::ddp || !started_by_launcher(),
          "this process was started by a launcher as one of several, which only --mode ddp can use");
}

}  // namespace

double TrainOptions::learning_rate() const {
  return lr.value_or(optimizer == "sgd" ? 0.02 : 0.001);
}

bool TrainOptions::shows_progress_bar() const {
  return !no_progress && isatty(STDOUT_FILENO) != 0;
}

std::string TrainOptions::resume_from() const {
  const char* restarts = std::getenv("LOCKSTEP_RESTART_COUNT");
  const bool restarted = restarts && std::string(restarts) != "0" && !checkpoint.empty();
  if (resume != "auto" && !restarted) return resume;
  if (access(checkpoint.c_str(), F_OK) == 0) return checkpoint;
  return resume == "auto" ? std::string() : resume;
}

bool started_by_launcher() {
  const auto launcher = distributed::read_launcher(distributed::current_environment());
  return launcher.world_size.value_or(1) > 1 || std::getenv("LOCKSTEP_STORE_HOSTED") != nullptr;
}

std::optional<TrainOptions> parse_options(int argc, const char* const* argv) {
  TrainOptions options;
  CLI::App app{"Trains a small network on MNIST, on one device, several devices, or several processes.", "mnist_train"};
  std::string mode;
  std::string devices;
  CLI::Option* lockstep = nullptr;
  std::string tensorboard;
  bool version = false;

  app.add_flag("--version", version, "Print the version");
  app.add_option("--mode", mode,
                 "single, dp (several devices) or ddp (several processes); default: ddp under a launcher")
      ->check(CLI::IsMember({"single", "dp", "ddp"}));
  app.add_option("--device", options.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--nproc", options.nproc, "ddp without a launcher: start this many local processes");
  app.add_option("--devices", devices, "dp: device indices, such as 0,1");
  app.add_option("--backend", options.backend,
                 "auto (nccl for CUDA devices; else shared memory on one machine, else gloo), shm, gloo, mpi or nccl")
      ->check(CLI::IsMember({"auto", "shm", "gloo", "mpi", "nccl"}));
  app.add_option("--init-method", options.init_method, "env://, tcp://HOST:PORT or file:///PATH");
  app.add_option("--timeout", options.timeout_s, "Deadline in seconds of the meeting and of each collective");
  app.add_option("--dataset", options.dataset, "mnist or fashion-mnist")
      ->check(CLI::IsMember({"mnist", "fashion-mnist"}));
  app.add_option("--data-dir", options.data_dir,
                 "Folder of the data set; default: LOCKSTEP_DATA, then the usual places");
  app.add_option("--model", options.model, "lenet, cnn, mlp or lenet-bn")->check(CLI::IsMember(models::model_names()));
  app.add_option("--epochs", options.epochs, "Passes over the training set");
  app.add_option("--max-steps", options.max_steps, "Stop after this many steps");
  app.add_option("--batch-size", options.batch_size, "Samples a step, over all devices and processes together");
  app.add_option("--optimizer", options.optimizer, "sgd, adam or adamw")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}));
  app.add_option("--lr", options.lr, "Learning rate; default 0.02 for sgd, 0.001 for adam and adamw");
  app.add_option("--momentum", options.momentum, "Momentum of sgd");
  app.add_option("--schedule", options.schedule, "constant, cosine or one-cycle")
      ->check(CLI::IsMember({"constant", "cosine", "one-cycle"}));
  app.add_option("--seed", options.seed, "Seed of weights, data order and dropout");
  app.add_option("--threads", options.threads, "Threads of each process");
  lockstep = app.add_option("--lockstep", options.lockstep,
                            "Logical shards, a power of two: the same bits on any number of workers up to it");
  app.add_option("--accumulate", options.accumulate,
                 "Compute each step in this many slices, one after the other: less memory, the same gradients");
  app.add_option("--amp", options.amp, "Mixed precision, off, bf16 or fp16: products and convolutions in that type")
      ->check(CLI::IsMember({"off", "bf16", "fp16"}));
  app.add_option("--compress", options.compress, "ddp: how gradients travel: none, fp16, bf16 or powersgd")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "powersgd"}));
  app.add_flag("--sync-batch-norm", options.sync_batch_norm, "ddp: batch norm over the samples of all processes");
  app.add_flag("--zero", options.zero, "ddp: divide the optimizer's state over the processes (ZeRO-1); the same bits");
  app.add_flag("!--no-graph", options.graph, "CUDA: start kernels one by one instead of each step as a CUDA graph");
  app.add_option("--checkpoint", options.checkpoint, "Training checkpoint to write");
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between checkpoints; default: at the end");
  app.add_option("--resume", options.resume, "Training checkpoint to go on from; auto: --checkpoint's, if there");
  app.add_option("--save", options.save, "Write the weights as safetensors at the end");
  app.add_option("--metrics", options.metrics, "Write a JSON line for each step");
  app.add_option("--trace", options.trace, "ddp: write a Chrome trace of gradients and all-reduces");
  app.add_option("--trace-hashes", options.trace_hashes, "Write hashes of each step's tensors, for lockstep-bisect");
  app.add_option("--tensorboard", tensorboard, "Folder for TensorBoard event files");
  app.add_flag("--no-progress", options.no_progress, "Print plain lines even on a terminal");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}; see --help", error.what()));
  }
  if (version) {
    std::fputs("mnist_train " LOCKSTEP_VERSION "\n", stdout);
    return std::nullopt;
  }
  if (mode.empty()) mode = started_by_launcher() || options.nproc > 0 ? "ddp" : devices.empty() ? "single" : "dp";
  options.mode = mode == "single" ? Mode::single : mode == "dp" ? Mode::dp : Mode::ddp;
  require(devices.empty() || options.mode == Mode::dp, "--devices belongs to --mode dp");
  refuse_what_is_missing(options, tensorboard);
  options.device = settled_device(options);
  const DeviceType type = options.device == "cuda" ? kCUDA : kCPU;
  require(options.backend != "nccl" || type == kCUDA,
          "--backend nccl works on CUDA devices, and this runs on the CPU; use --device cuda, or another backend");
  require(
      type == kCPU || options.mode != Mode::ddp || options.backend == "auto" || options.backend == "nccl",
      fmt::format("--backend {} works on the CPU, and this runs on CUDA devices; use --backend nccl, or --device cpu",
                  options.backend));
  if (type == kCUDA && devices.empty()) options.devices = all_cuda_devices();
  if (!devices.empty()) options.devices = parse_devices(devices, type);
  for (const Device& device : options.devices)
    require(device.is_cpu() || device.index < cuda::device_count(),
            fmt::format("--devices names cuda:{}, and this machine has cuda:0 to cuda:{}", device.index,
                        cuda::device_count() - 1));
  check(options);
  if (lockstep->count() > 0) check_lockstep(options);
  return options;
}

}  // namespace lockstep::apps
