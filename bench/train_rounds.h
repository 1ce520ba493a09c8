#pragma once

// What the training benchmarks of every library share: arguments, synthetic data, timed rounds. Standard library only.

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace train_rounds {

/// What one process measures.
struct Setup {
  std::string model;  ///< lenet, cnn, cnn_plain (cnn without dropout), mlp, or one of the models below
  std::int64_t batch = 0;
  int threads = 1;
  bool bf16 = false;  ///< mixed precision: products and convolutions in bfloat16
};

constexpr std::int64_t kImages = 60000;  ///< the size of MNIST, so that batches come from memory, not from a cache
constexpr std::int64_t kPixels = 28 * 28;
constexpr std::int64_t kClasses = 10;
constexpr double kLearningRate = 0.01;
constexpr double kMomentum = 0.9;

constexpr double kAdamRate = 3e-4;

/// The window of a language model: gpt (256), gpt_1024; 0 for models of images.
inline std::int64_t context_of(const std::string& model) {
  return model == "gpt" ? 256 : model == "gpt_1024" ? 1024 : 0;
}
/// Models of images of 3 x 32 x 32; the others take 1 x 28 x 28.
inline bool takes_colour(const std::string& model) {
  return model == "resnet18" || model == "mobilenet" || model == "vit" || model == "mixer";
}
/// Models that are trained by AdamW behind clipped gradients; the others by SGD with momentum.
inline bool uses_adam(const std::string& model) {
  return context_of(model) > 0 || model == "vit" || model == "mixer" || model == "mlp_gelu";
}

/// A small generator (splitmix64), the same sequence in every program.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

inline void fill_images(float* images) {
  Random random(1);
  for (std::int64_t i = 0; i < kImages * kPixels; ++i) images[i] = random.uniform() - 0.5f;
}

inline void fill_labels(std::int64_t* labels) {
  Random random(2);
  for (std::int64_t i = 0; i < kImages; ++i) labels[i] = random.below(kClasses);
}

/// Draws the positions of one batch, of so many images.
inline void fill_batch(Random& random, std::int64_t* index, std::int64_t batch, std::int64_t images = kImages) {
  for (std::int64_t i = 0; i < batch; ++i) index[i] = random.below(images);
}

/// Processor time of this process, all threads, user and system.
inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The most memory that this process has had, in MiB.
inline double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

/// Usage: PROGRAM MODEL BATCH THREADS [bf16]. `make_step(setup)` builds the net and returns a callable that trains one
/// step and returns its loss. Then each line on stdin holds a number of steps to run; the answer is one line of JSON
/// with the seconds and the processor seconds they took, and the process's peak memory, of which the images are 179
/// MiB. Ends with stdin.
template <typename MakeStep>
int run(int argc, char** argv, const char* library, MakeStep&& make_step) {
  const bool bf16 = argc == 5 && std::string(argv[4]) == "bf16";
  if (argc != 4 && !bf16) {
    std::fprintf(stderr, "usage: %s MODEL BATCH THREADS [bf16]\n", argv[0]);
    return 2;
  }
  try {
    const Setup setup{argv[1], std::atoll(argv[2]), std::atoi(argv[3]), bf16};
    auto step = make_step(setup);
    std::printf("{\"library\": \"%s\"}\n", library);
    std::fflush(stdout);
    char line[64];
    while (std::fgets(line, sizeof line, stdin)) {
      const int steps = std::atoi(line);
      const double cpu = cpu_seconds();
      const auto start = std::chrono::steady_clock::now();
      double loss = 0;
      for (int i = 0; i < steps; ++i) loss = step();
      const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("{\"steps\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"peak_mib\": %.1f, \"loss\": %.6f}\n",
                  steps, wall, cpu_seconds() - cpu, peak_mib(), loss);
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}

}  // namespace train_rounds
