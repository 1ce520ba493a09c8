#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep::apps {

enum class Mode { single, dp, ddp };

/// The command line of mnist_train, checked.
struct TrainOptions {
  Mode mode = Mode::single;
  std::string device = "auto";
  int nproc = 0;  ///< local processes to start; 0: not given
  std::vector<Device> devices = {Device(kCPU, 0), Device(kCPU, 1)};
  std::string backend = "auto";
  std::string init_method;
  double timeout_s = 300.0;

  std::string dataset = "mnist";
  std::string data_dir;
  std::string model = "lenet";

  std::int64_t epochs = 3;
  std::int64_t max_steps = 0;  ///< 0: no limit
  std::int64_t batch_size = 64;
  std::string optimizer = "sgd";
  std::optional<double> lr;  ///< default by optimizer
  double momentum = 0.9;
  std::string schedule = "cosine";
  std::uint64_t seed = 1;
  int threads = 0;            ///< 0: as the environment says
  std::int64_t lockstep = 0;  ///< logical shards; 0: not in lockstep mode

  std::int64_t accumulate = 1;  ///< slices that a step is computed in
  std::string amp = "off";      ///< "bf16", "fp16": the type of products and convolutions
  std::string compress = "none";
  bool sync_batch_norm = false;
  bool graph = true;  ///< steps as CUDA graphs, on CUDA devices
  bool zero = false;  ///< divide the optimizer's state over the processes

  std::string checkpoint;
  std::int64_t checkpoint_every = 0;
  std::string resume;
  std::string save;
  std::string metrics;
  std::string trace;
  std::string trace_hashes;
  bool no_progress = false;

  double learning_rate() const;
  bool shows_progress_bar() const;
  /// The checkpoint to go on from, empty for none: what --resume names, or the own --checkpoint, if it is there, for
  /// "auto" and for workers that a launcher has started again.
  std::string resume_from() const;
};

/// True if a launcher started this process as one of several (lockstep-run, torchrun, Open MPI, Slurm).
bool started_by_launcher();

/// Parses main's arguments. Throws UsageError. Returns nothing if --help or --version was asked for and answered.
std::optional<TrainOptions> parse_options(int argc, const char* const* argv);

}  // namespace lockstep::apps
