#pragma once

// For code that calls libraries built with OpenMP. For .cpp files only.

// Weak: null if no library of the process brought an OpenMP runtime with it.
extern "C" {
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) void omp_set_num_threads(int count);
}

namespace lockstep::cpu {

/// While it lives, OpenMP regions entered from this thread run on this thread alone: our pool already has a thread on
/// each core, and results must not depend on how many. The setting belongs to the calling thread; other threads, and
/// the program's own OpenMP code afterwards, keep theirs.
class OneOpenmpThread {
 public:
  OneOpenmpThread() {
    if (!omp_get_max_threads || !omp_set_num_threads) return;
    saved_ = omp_get_max_threads();
    if (saved_ != 1) omp_set_num_threads(1);
  }
  ~OneOpenmpThread() {
    if (saved_ > 1) omp_set_num_threads(saved_);
  }
  OneOpenmpThread(const OneOpenmpThread&) = delete;
  OneOpenmpThread& operator=(const OneOpenmpThread&) = delete;

 private:
  int saved_ = 0;
};

}  // namespace lockstep::cpu
