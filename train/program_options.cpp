#include "lockstep/train/program_options.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"
#include "lockstep/train/started_by_launcher.h"

namespace lockstep::training {
namespace {

using command_line::number;
using command_line::throw_not_available;
using command_line::UsageError;

void require(bool condition, const std::string& message) {
  if (!condition) throw UsageError(message);
}

void refuse_backend_that_is_missing(const std::string& backend) {
  const std::vector<std::string> backends = distributed::available_backends();
  if (backend == "auto" || std::find(backends.begin(), backends.end(), backend) != backends.end()) return;
  throw_not_available("--backend " + backend, "build",
                      backend == "nccl"  ? "build it with CUDA and NCCL's header, or use --backend auto"
                      : backend == "mpi" ? "install libopenmpi-dev and build again, or use --backend auto"
                                         : "install libgloo-dev and build again, or use --backend auto");
}

distributed::CommunicationHookPtr make_hook(const std::string& compress,
                                            const std::shared_ptr<optim::GradScaler>& scaler) {
  if (compress == "fp16") return distributed::fp16_compression();
  if (compress == "bf16") return distributed::bf16_compression();
  if (compress == "powersgd")
    return distributed::power_sgd({.loss_scale = [scaler] { return scaler ? scaler->scale_factor() : 1.0; }});
  return nullptr;
}

}  // namespace

Program::Options::Options(std::string program, const std::string& description, std::string version)
    : name(std::move(program)), version(std::move(version)), app(description, name) {}

void Program::Options::add_common() {
  if (!version.empty()) app.add_flag("--version", print_version, "Print the version");

  const std::string who = "Who computes";
  app.add_option("--mode", mode,
                 "single, dp (several devices) or ddp (several processes); default: ddp under a launcher")
      ->check(CLI::IsMember({"single", "dp", "ddp"}))
      ->group(who);
  app.add_option("--device", workers.device, "auto (CUDA devices if there are any), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(who);
  app.add_option("--nproc", nproc, "ddp without a launcher: start this many local processes")
      ->check(number(1, 1024))
      ->group(who);
  app.add_option("--devices", devices,
                 "dp: device indices, such as 0,1; default: all GPUs, or two logical devices of the CPU")
      ->delimiter(',')
      ->check(number(0, 1023))
      ->group(who);
  app.add_option("--backend", workers.job.backend,
                 "auto (nccl for CUDA devices; else shared memory on one machine, else gloo), shm, gloo, mpi or nccl")
      ->check(CLI::IsMember({"auto", "shm", "gloo", "mpi", "nccl"}))
      ->capture_default_str()
      ->group(who);
  app.add_option("--init-method", workers.job.init_method,
                 "ddp: env://, tcp://HOST:PORT or file:///PATH; default: env:// in what a launcher starts")
      ->group(who);
  auto* const rank = app.add_option("--rank", workers.job.rank, "This process among --world-size, without a launcher")
                         ->check(number(0, distributed::kMostRanks - 1))
                         ->group(who);
  auto* const world_size = app.add_option("--world-size", workers.job.world_size, "Processes of the job")
                               ->check(number(1, distributed::kMostRanks))
                               ->needs(rank)
                               ->group(who);
  rank->needs(world_size);
  // What torch.distributed.launch appends; LOCAL_RANK says the same.
  app.add_option("--local-rank", ignored)->group("");
  app.add_option("--timeout", timeout, "Deadline in seconds of the meeting and of each collective")
      ->check(number(0.001, 86400.0))
      ->capture_default_str()
      ->group(who);
  app.add_option("--threads", workers.threads,
                 "Threads of each process; default: LOCKSTEP_NUM_THREADS, OMP_NUM_THREADS, or the cores it may use")
      ->check(number(1, 1024))
      ->group(who);

  const std::string how = "How to train";
  if (run.epochs > 0)
    app.add_option("--epochs", run.epochs, "Passes over the training set")
        ->check(number<std::int64_t>(1))
        ->capture_default_str()
        ->group(how);
  app.add_option("--max-steps", run.max_steps, "Stop after this many steps; 0: no limit")
      ->check(number<std::int64_t>(0))
      ->capture_default_str()
      ->group(how);
  app.add_option("--batch-size", workers.batch_size, "Samples a step, over all devices and processes together")
      ->check(number<std::int64_t>(1))
      ->capture_default_str()
      ->group(how);
  app.add_option("--seed", workers.seed, "Seed of weights, data order and dropout")
      ->check(number<std::uint64_t>())
      ->capture_default_str()
      ->group(how);
  app.add_option("--lockstep", workers.logical_shards,
                 "Logical shards, a power of two: the same bits on any number of workers up to it; default: off")
      ->check(number<std::int64_t>())
      ->group(how);
  app.add_flag("--lockstep-portable", workers.portable,
               "With --lockstep on CUDA devices: the CPU's bits, by plain kernels that are many times slower; float32, "
               "for models of linear layers, small convolutions under max_pool2d and cross-entropy")
      ->group(how);
  if (choose_mesh) {
    app.add_option(
           "--mesh", mesh,
           "Processes as a grid, such as data=2,pipeline=2,tensor=2; auto: one that fits their number; auto:MESH: this "
           "one, or another after a loss")
        ->group(who);
    app.add_option("--lockstep-tensor", workers.tensor_shards,
                   "Logical shards of divided layers, a power of two: the same bits on any --mesh whose tensor divides "
                   "it; 0: layers are whole unless --mesh divides them")
        ->check(number<std::int64_t>(0, 1 << 10))
        ->group(how);
  }
  app.add_option("--accumulate", workers.accumulate,
                 "Compute each step in this many slices, one after the other: less memory, the same gradients")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(how);
  app.add_option("--amp", amp, "Mixed precision, off, bf16 or fp16: products and convolutions in that type")
      ->check(CLI::IsMember({"off", "bf16", "fp16"}))
      ->capture_default_str()
      ->group(how);
  app.add_option("--compress", compress, "ddp: how gradients travel: none, fp16, bf16 or powersgd")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "powersgd"}))
      ->capture_default_str()
      ->group(how);
  app.add_flag(
         "--zero{1}", workers.zero,
         "ddp: divide the optimizer's state over the processes (ZeRO-1); --zero 2: gradients too, --zero 3: parameters "
         "too; in lockstep mode the same bits")
      ->check(CLI::IsMember({1, 2, 3}))
      ->group(how);
  app.add_option(
         "--zero-gather", gather,
         "--zero=3: parameters travel as fp32, or as bf16, rounded: half the bytes, and with --lockstep the same "
         "bits on any number of workers, but not those of fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str()
      ->group(how);
  app.add_flag("!--no-graph", run.graph, "CUDA: start kernels one by one instead of each step as a CUDA graph")
      ->group(how);

  const std::string files = "Files";
  app.add_option("--checkpoint", run.checkpoint,
                 "Training checkpoint to write, at the end and on SIGTERM; default: none")
      ->group(files);
  app.add_option("--checkpoint-every", run.checkpoint_every, "Steps between checkpoints; 0, the default: none by steps")
      ->check(number<std::int64_t>(0))
      ->group(files);
  app.add_option("--checkpoint-minutes", run.checkpoint_minutes,
                 "Minutes between checkpoints; 0, the default: none by time")
      ->check(number(0.0))
      ->group(files);
  app.add_flag("--checkpoint-async", run.checkpoint_async, "Go on training while a checkpoint is written")
      ->group(files);
  app.add_option("--keep-checkpoints", run.keep_checkpoints,
                 "The last so many checkpoints, by step, beside the newest; 1, the default: the newest alone")
      ->check(number<std::int64_t>(1))
      ->group(files);
  app.add_option(
         "--resume", run.resume,
         "Training checkpoint to go on from; auto: --checkpoint's newest, if there (the default under a launcher "
         "with --max-restarts); none")
      ->group(files);
  app.add_option("--save", run.save, "Write the weights as safetensors at the end")->group(files);
  app.add_option("--metrics", run.metrics, "Write a JSON line for each step")->group(files);
  app.add_option("--trace", run.trace, "ddp: write a Chrome trace of gradients and all-reduces")->group(files);
  app.add_option("--trace-hashes", run.trace_hashes, "Write hashes of each step's tensors, for lockstep-bisect")
      ->group(files);
  app.add_option("--profile", run.profile, "Write a Chrome trace of the kernels of ten steps")->group(files);
  app.add_flag("--no-progress", no_progress, "Print plain lines even on a terminal")->group(files);
  note_defaults();
}

void Program::Options::refuse_empty_paths() const {
  std::vector<std::string> names{"--checkpoint", "--resume",       "--save",   "--metrics",
                                 "--trace",      "--trace-hashes", "--profile"};
  for (const OwnOutput& output : outputs) names.push_back(output.option);
  for (const std::string& option : names)
    require(app.count(option) == 0 || !app.get_option(option)->as<std::string>().empty(),
            fmt::format("{} is given an empty name; name a file, or leave {} out", option, option));
}

void Program::Options::settle() {
  refuse_empty_paths();
  settle_mode();
  settle_mesh();
  settle_device();
  const bool is_ddp = workers.mode == Mode::ddp;
  require(is_ddp || nproc == 0, "--nproc belongs to --mode ddp");
  require(is_ddp || !workers.job.rank, "--rank and --world-size belong to --mode ddp");
  require(is_ddp || app.count("--init-method") == 0,
          "--init-method belongs to --mode ddp, with --rank and --world-size or a launcher");
  require(nproc == 0 || !workers.job.rank,
          "--rank and --world-size are of processes started one by one, and --nproc "
          "starts them; leave out one or the other");
  require(is_ddp || compress == "none", "--compress belongs to --mode ddp");
  require(is_ddp || !workers.zero, "--zero belongs to --mode ddp");
  require(is_ddp || run.trace.empty(), "--trace belongs to --mode ddp; of one process --profile shows the kernels");
  require(gather == "fp32" || workers.zero == 3, "--zero-gather belongs to --zero=3");
  require(gather == "fp32" || amp == "bf16", "--zero-gather bf16 belongs to --amp bf16");
  run.gather_dtype = workers.gather_dtype = gather == "bf16" ? kBFloat16 : kFloat32;
  require(workers.zero <= 1 || compress == "none",
          fmt::format("--compress works on whole gradients, which --zero={} does not keep; leave out one of them",
                      workers.zero));
  require(is_ddp || !(started_by_launcher() || has_rank_alone()),
          "this process was started by a launcher as one of several, which only --mode ddp can use");
  require(workers.accumulate >= 1 && workers.accumulate <= workers.batch_size,
          fmt::format("--accumulate {} is out of range; expected 1 to --batch-size {}", workers.accumulate,
                      workers.batch_size));
  require(run.resume != "auto" || !run.checkpoint.empty(), "--resume auto needs --checkpoint FILE");
  require(run.checkpoint_every == 0 || !run.checkpoint.empty(), "--checkpoint-every needs --checkpoint FILE");
  require(run.checkpoint_minutes == 0 || !run.checkpoint.empty(), "--checkpoint-minutes needs --checkpoint FILE");
  for (const char* const option : {"--checkpoint-async", "--keep-checkpoints"})
    require(app.count(option) == 0 || !run.checkpoint.empty(), fmt::format("{} needs --checkpoint FILE", option));
  if (app.count("--lockstep") > 0) check_lockstep();
  require(!workers.portable || workers.logical_shards > 0, "--lockstep-portable belongs to --lockstep");
  require(!workers.portable || amp == "off",
          fmt::format("--lockstep-portable computes in float32; leave out --amp {}", amp));

  workers.job.timeout = distributed::Milliseconds(static_cast<std::int64_t>(timeout * 1000));
  run.amp = amp == "fp16" ? kFloat16 : amp == "bf16" ? kBFloat16 : kFloat32;
  if (run.amp == kFloat16 && !run.scaler) run.scaler = std::make_shared<optim::GradScaler>();
  run.hook = workers.hook = make_hook(compress, run.scaler);
  run.logical_shards = workers.logical_shards;
  if (no_progress) run.progress = Progress::lines;
}

void Program::Options::settle_mode() {
  if (mode.empty()) {
    const bool several = started_by_launcher() || has_rank_alone() || nproc > 0 || workers.job.rank;
    mode = several ? "ddp" : devices.empty() ? "single" : "dp";
  }
  workers.mode = mode == "single" ? Mode::single : mode == "dp" ? Mode::dp : Mode::ddp;
  require(devices.empty() || workers.mode == Mode::dp, "--devices belongs to --mode dp");
}

// The mesh, and how many processes it starts if nobody says.
void Program::Options::settle_mesh() {
  const auto usage = [](const auto& body) {
    try {
      return body();
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
  };
  if (mesh.empty() && workers.tensor_shards == 0) return;
  require(workers.tensor_shards == 0 || workers.logical_shards > 0, "--lockstep-tensor belongs to --lockstep");
  require(workers.tensor_shards == 0 || std::has_single_bit(static_cast<std::uint64_t>(workers.tensor_shards)),
          fmt::format("--lockstep-tensor {} is not a power of two; expected 1, 2, 4, 8 ...", workers.tensor_shards));
  require(workers.mode != Mode::dp, "--mesh and --lockstep-tensor are for processes, not for --mode dp");
  const bool told = started_by_launcher() || has_rank_alone() || workers.job.rank || nproc > 0;
  const auto processes_of = [](const distributed::MeshSizes& sizes) {
    return std::int64_t{sizes.data} * sizes.pipeline * sizes.tensor;
  };
  const bool chooses = mesh.starts_with("auto");
  if (!mesh.empty() && mesh != "auto") {
    const bool preferred = mesh.starts_with("auto:");
    workers.mesh = usage([&] { return distributed::parse_mesh(preferred ? mesh.substr(5) : mesh); });
    const std::int64_t processes = processes_of(*workers.mesh);
    require(processes <= 1024, fmt::format("--mesh {} is for {} processes; expected 1024 at most", mesh, processes));
    if (!told && processes > 1) {
      nproc = static_cast<int>(processes);
      workers.mode = Mode::ddp;
    }
  }
  const auto launched = distributed::read_launcher(current_environment()).world_size;
  const int processes = workers.mode != Mode::ddp ? 1
                        : nproc > 0               ? nproc
                        : workers.job.world_size  ? *workers.job.world_size
                                                  : launched.value_or(1);
  if (chooses && (!workers.mesh || processes_of(*workers.mesh) != processes))
    workers.mesh = usage([&] { return choose_mesh(processes, workers); });
  if (!workers.mesh) workers.mesh = distributed::MeshSizes{.data = processes};
  const distributed::MeshSizes& sizes = *workers.mesh;
  require(processes_of(sizes) == processes,
          fmt::format("--mesh {} is for {} process(es), and there are {}; choose sizes whose product is their number",
                      mesh, processes_of(sizes), processes));
  require(
      workers.tensor_shards == 0 || workers.tensor_shards % sizes.tensor == 0,
      fmt::format("--lockstep-tensor {} cannot be divided evenly over tensor={}", workers.tensor_shards, sizes.tensor));
  require(workers.logical_shards == 0 || workers.tensor_shards > 0 || sizes.tensor == 1,
          fmt::format("--mesh {} divides layers, whose bits --lockstep alone does not hold; pass --lockstep-tensor, a "
                      "number that {} divides",
                      mesh, sizes.tensor));
  require(compress == "none", "--compress does not go together with --mesh");
}

// "auto" is settled once, before anything is started.
void Program::Options::settle_device() {
  const std::string& backend = workers.job.backend;
  if (workers.device == "cuda" && !cuda::is_available())
    throw_not_available("--device cuda", cuda::is_built() ? "machine" : "build",
                        fmt::format("{}; use --device cpu", cuda::why_unavailable()));
  refuse_backend_that_is_missing(backend);
  if (workers.device == "auto")
    workers.device = cuda::is_available() && (backend == "auto" || backend == "nccl") ? "cuda" : "cpu";
  const bool is_cuda = workers.device == "cuda";
  require(backend != "nccl" || is_cuda,
          "--backend nccl works on CUDA devices, and this runs on the CPU; use --device cuda, or another backend");
  require(
      !is_cuda || workers.mode != Mode::ddp || backend == "auto" || backend == "nccl",
      fmt::format("--backend {} works on the CPU, and this runs on CUDA devices; use --backend nccl, or --device cpu",
                  backend));
  if (workers.mode != Mode::dp) return;
  if (devices.empty())
    for (int i = 0; i < (is_cuda ? cuda::device_count() : 2); ++i) devices.push_back(i);
  for (const int index : devices) {
    require(!is_cuda || index < cuda::device_count(),
            fmt::format("--devices names cuda:{}, and this machine has cuda:0 to cuda:{}", index,
                        cuda::device_count() - 1));
    workers.devices.emplace_back(is_cuda ? kCUDA : kCPU, index);
  }
}

void Program::Options::check_lockstep() const {
  const std::int64_t v = workers.logical_shards;
  require(v > 0 && v <= (1 << 20) && std::has_single_bit(static_cast<std::uint64_t>(v)),
          fmt::format("--lockstep {} is not a power of two up to 1048576; expected 1, 2, 4, 8 ...", v));
  const auto count = workers.mode == Mode::dp ? static_cast<std::int64_t>(workers.devices.size())
                     : workers.mesh           ? workers.mesh->data
                                              : nproc;
  require(count <= v, fmt::format("--lockstep {} cannot be shared by {} workers; expected at least as many logical "
                                  "shards as workers",
                                  v, count));
  require(compress == "none",
          fmt::format("--compress {} cannot be used with --lockstep, whose bits come from one fixed order of additions",
                      compress));
  require(workers.accumulate == 1,
          "--accumulate is implied by --lockstep, which accumulates over the logical shards; "
          "raise --lockstep for smaller slices");
  require(v <= workers.batch_size,
          fmt::format("--lockstep {} is more than --batch-size {}; expected at least one sample for each logical shard",
                      v, workers.batch_size));
}

}  // namespace lockstep::training
