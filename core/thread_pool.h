#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

/// Note [Variables of a thread]
/// A small operation reads about ten variables of its thread. Those declared with this are found without a call: they
/// lie in the block of memory that a thread has from its start. Of that block glibc keeps some 1.5 KB for libraries
/// that a program loads later, which other libraries need too. So it is for what every operation reads. nvcc does not
/// know the attribute; its code calls, and finds the same variable.
#if defined(__GNUC__) && !defined(__CUDACC__)
#define LOCKSTEP_INITIAL_EXEC [[gnu::tls_model("initial-exec")]]
#else
#define LOCKSTEP_INITIAL_EXEC
#endif

namespace lockstep {

/// Number of threads that parallel_for may use, the caller included. Initially LOCKSTEP_NUM_THREADS, else
/// OMP_NUM_THREADS, else the number of cores this process may run on.
int num_threads();
/// Throws Error unless 1 <= n <= 1024. Not to be called while a parallel_for runs. A forked child keeps the number.
void set_num_threads(int n);

/// The number, from 0, of the thread that runs a block of a parallel_for which has several; no other thread has it
/// meanwhile. -1 outside of such loops.
int loop_thread();

namespace detail {
using BlockFunction = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t block, void* context, BlockFunction run);
}  // namespace detail

/// Note [Thread-independent results]
/// Cuts [0, count) into blocks of `block` elements (the last may be short) and calls body(begin, end) once for each, on
/// any thread and in any order. The cut depends on the arguments alone, never on the number of threads; a body that
/// writes only to its own block, or a partial result per block that is then combined in block order, gives the same
/// bits on any number of threads. A block should be worth at least some 10 microseconds of work.
/// Nested calls, and calls made while another thread's loop runs, execute serially on the calling thread.
/// The first exception of a body is rethrown after all blocks have ended. Throws Error, having run nothing, if the
/// threads cannot be started.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t block, Body&& body) {
  using B = std::remove_reference_t<Body>;
  if (count <= 0) return;
  if (count <= block) {
    body(std::int64_t{0}, count);
    return;
  }
  detail::parallel_for(
      count, block, const_cast<std::remove_const_t<B>*>(&body),
      [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<B*>(context))(begin, end); });
}

}  // namespace lockstep
