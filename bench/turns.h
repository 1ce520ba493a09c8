#pragma once

// What the benchmarks of kernels share: clocks, and libraries that take turns in one process.

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace turns {

/// Seconds of processor time of this thread, or of wall-clock time.
inline double now(bool processor) {
  timespec t{};
  clock_gettime(processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Starts the program again, once, with what the libraries read when they are loaded: the instruction set that all are
/// held to ("avx2", "avx512" or empty), the OpenMP build of OpenBLAS where Debian's is there, so that the libraries
/// have one pool of threads, and for how long that pool spins.
inline void hold_libraries_to(const std::string& cpu, int argc, char** argv) {
  const std::string held = "--held";  // the mark of the second start; the programs skip options that they do not know
  if (argc > 1 && argv[argc - 2] == held) return;
  setenv("LOCKSTEP_KERNELS", "own", 1);
  if (!cpu.empty()) setenv("LOCKSTEP_CPU", cpu.c_str(), 1);
  if (cpu == "avx2") {
    setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  } else if (cpu == "avx512" || (cpu.empty() && __builtin_cpu_supports("avx512f"))) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);  // some versions take a newer processor for a very old one
  }
  setenv("GOMP_SPINCOUNT", "50000", 0);        // well below kPause
  setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);  // 2^20 cycles; of its own threads, where it has no OpenMP: else 2^28
  const std::string openmp = "/usr/lib/x86_64-linux-gnu/openblas-openmp";
  if (std::filesystem::is_directory(openmp)) setenv("LD_LIBRARY_PATH", openmp.c_str(), 1);
  std::vector<char*> arguments(argv, argv + argc);
  std::string mark[] = {held, "1"};
  for (std::string& word : mark) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
}

/// The best of many short samples of each call, in turns, in seconds of one call; `around` is called once a round. One
/// thread: processor time, so that other programs disturb little. More: wall-clock time; then each sample begins with a
/// pause in which the threads of the others, which wait for work by spinning, go to sleep, and with calls that wake its
/// own.
inline std::vector<double> best(
    const std::vector<std::function<void()>>& calls, int threads, double seconds, double sample,
    const std::function<void()>& around = [] {}) {
  constexpr useconds_t kPause = 3000;
  constexpr double kWaking = 5e-3;  // until a scheduler has moved a thread that woke on the core of another
  const bool alone = threads == 1;
  std::vector<double> best(calls.size(), 0);
  std::vector<int> repeats;
  for (const auto& call : calls) {
    call();
    const double start = now(alone);
    call();
    repeats.push_back(std::max(1, static_cast<int>(sample / std::max(1e-7, now(alone) - start))));
  }
  const double end = now(false) + seconds * static_cast<double>(calls.size()) * (alone ? 1 : 4);
  for (int round = 0; round < 4 || now(false) < end; ++round) {
    around();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!alone) {
        usleep(kPause);
        const double woken = now(false) + kWaking;
        do calls[i]();
        while (now(false) < woken);
      }
      const double start = now(alone);
      for (int r = 0; r < repeats[i]; ++r) calls[i]();
      const double one = (now(alone) - start) / repeats[i];
      if (best[i] == 0 || one < best[i]) best[i] = one;
    }
  }
  return best;
}

}  // namespace turns
