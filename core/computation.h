#pragma once

// Values that are computed when they are first read. For operations (.cpp files) only.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/ref_counted.h"
#include "lockstep/core/small_vector.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Note [Pending values]
/// Operations that can be computed together with those that follow them, such as a convolution before a pool and a
/// relu, do not compute at the call: they check their arguments, and make a result whose storage has no memory but a
/// Computation. An operation on a pending tensor that can be joined to it makes another. The first who asks for the
/// address of a result computes it: Computation::settle() walks up to the first pending computation, its head, and asks
/// it for one kernel for as much of the chain as it can; what has no kernel together is computed one by one. Results
/// between are left pending: whoever reads one later gets it by the kernel of its own.
///
/// What there is to rely on:
/// - The bits are those of the operations one by one. Nothing but time and memory depends on what was computed
///   together, so neither do results depend on who holds which tensor. On a CUDA device the last bits may differ, so
///   there the program of one thread alone decides what is joined: other threads' events and waits change nothing.
/// - Inputs count as they are at the call. Whoever changes memory says so before (Storage::before_change()), and
///   pending computations that read it are made then; operands whose address was lent (Note [Lent addresses]) are
///   copied or not waited for (may_wait()).
/// - Only the first input of a computation may be pending itself, and chains are short; operations that begin one
///   compute their inputs first. So no graph builds up, and inputs live until the next operation that is not joined.
///   Functions of each element are the exception (Note [Elementwise chains] in core/elementwise_computation.h).
/// - Any thread may ask. A computation is made once, by one thread; others wait. A thread that holds the lock of one
///   takes those of computations before it, never after it, so they do not wait for each other. An error leaves it
///   pending.
/// - On a CUDA device the work goes to the stream that was the current one at the call. A thread's own is put there
///   before it records an event or waits and before its capture ends (settle_own()), and everybody's before a capture
///   begins and a graph is launched (settle_device()). Who asks for it from another stream has that stream wait for it.
/// - Switches that change how something is computed settle everything first: settle_all().
///
/// LOCKSTEP_FUSION=0 computes every result at its call, with the same bits but for what is said of a CUDA device.
///
/// Note [Lent addresses]
/// An address that Tensor::data() gave to the user may be written through at any later time, of which nothing is seen.
/// So a storage remembers that one was given (is_lent()); borrowed memory is lent from the beginning. The library's own
/// reads are within a LibraryAccess: kernels that are called through a KernelTable, and the loops that they run.
class Computation : public RefCounted {
 public:
  /// `inputs`: what is read, contiguous; the first alone may be pending. Undefined ones are allowed.
  explicit Computation(std::initializer_list<Tensor> inputs);
  virtual ~Computation();

  /// A new pending tensor: the result of this computation. May be called again only where there are no inputs.
  Tensor add_result(const Shape& sizes, TensorOptions options);
  /// The same for a computation of two results, which are made together: a thread that computes the first of them
  /// lets go of the inputs.
  std::array<Tensor, 2> add_results(const Shape& first, TensorOptions of_first, const Shape& second,
                                    TensorOptions of_second);
  /// Computes the results that are held by somebody and pending. Throws what the kernels throw.
  void settle();
  /// Computations in a row, this one and those before it that were pending when it was made.
  int length() const { return length_; }

  /// The inputs, while a result is pending; none afterwards.
  SmallVector<Tensor, 3> pending_inputs();

  /// Hides RefCounted's, which may leave the count of a last reference as it is.
  bool release() const { return release_to_zero(); }

  /// Its results are kept by other processes: what asks for an address may wait for these, or be refused.
  virtual bool is_elsewhere() const { return false; }
  /// An ElementwiseComputation: each of its inputs may be the pending result of another, and of no other kind.
  virtual bool is_elementwise() const { return false; }

  /// This thread computes one: nothing is left pending meanwhile.
  static bool is_computing();
  /// Every pending result of the process.
  static void settle_all();
  /// Every one on this CUDA device.
  static void settle_device(int device);
  /// Those on CUDA devices that this thread has left pending. What is laid out has its values, and what follows it gets
  /// them in the same order.
  static void settle_own();
  /// At the end of a capture: those that this thread has left pending on streams that are captured, for which the
  /// present stream then waits; what is laid out too, so that each replay writes what is read later.
  static void settle_captured();

  /// The values of the only result in the order of Note [Channels last], computed so if the chain can be; undefined if
  /// not.
  Tensor channels_last();
  /// Made of a tensor that is laid out, or from one that was: the result had better be, too.
  bool follows_laid_out() const { return follows_laid_out_ || is_laid_out(); }
  /// The result is an image of these sizes, and its sum with another is computed with it, channels last.
  bool takes_sum(const Shape& sizes) const { return sizes.dim() > 0 && image_ == sizes; }
  /// The values of the result lie in memory, channels last, and have only to be copied.
  bool is_laid_out() const { return laid_out_.load(std::memory_order_relaxed); }

 protected:
  /// Delivers every wanted result, from inputs that are not pending.
  virtual void compute() = 0;
  /// Delivers the results of the last of `links`, and others of theirs and this one's as it likes, without computing
  /// this one's result first. Each link's first input is the result of the one before. False, with nothing done, if
  /// there is no kernel for that.
  virtual bool compute_through(std::span<Computation* const> /*links*/) { return false; }

  /// Delivers the result of this one, the last of `members`, which are all that it is made of and pending, in the order
  /// in which they were made. False, with nothing done: it is computed by the two functions above.
  virtual bool compute_graph(std::span<Computation* const> /*members*/) { return false; }
  /// Calls work(members) as compute_graph() is called, if the result is pending; else returns false.
  bool with_graph(const std::function<void(std::span<Computation* const>)>& work);

  /// Computes the result of the last of `links`, or this one's if there are none, as [n, height, width, channels].
  /// Undefined, with nothing done, if there is no kernel for that.
  virtual Tensor compute_channels_last(std::span<Computation* const> /*links*/) { return {}; }
  /// The same for a link of a chain whose beginning has been computed: of `values`, those of its first input.
  virtual Tensor continue_channels_last(const Tensor& /*values*/) { return {}; }
  /// See follows_laid_out(); for constructors.
  void set_follows_laid_out() { follows_laid_out_ = true; }
  /// See takes_sum(); for constructors.
  void set_takes_sum(const Shape& sizes) { image_ = sizes; }
  /// From now on the result is a copy of `values`, its values laid out.
  void lay_out(Tensor values);

  /// All of them; for who holds the lock.
  std::span<const Tensor> inputs() const { return inputs_; }
  /// The i-th of the inputs.
  const Tensor& input(std::size_t i) const { return inputs_[i]; }
  /// Somebody holds result number i, and it is pending.
  bool wants(std::size_t i) const;
  /// References to result number i, those of computations that read it among them. It is wanted.
  std::uint32_t holders_of(std::size_t i) const;
  /// Result number i: a contiguous tensor that nobody else holds. Dropped if it is not wanted.
  void deliver(std::size_t i, Tensor value);
  /// For heads, which deliver results of links.
  static void deliver_to(Computation& link, std::size_t i, Tensor value) { link.deliver(i, std::move(value)); }
  static bool wanted_of(const Computation& link, std::size_t i) { return link.wants(i); }
  static const Tensor& input_of(const Computation& link, std::size_t i) { return link.inputs_[i]; }

 private:
  friend class Storage;
  using Tensors = SmallVector<Tensor, 3>;

  /// A result's storage is gone.
  void forget(const Storage& result);
  /// Computes everything that reads these values and is pending, before they change.
  static void settle_readers(const Storage& values);
  template <typename Which>
  static std::vector<IntrusivePtr<Computation>> find_those(const Which& which);
  static void settle_each(const std::vector<IntrusivePtr<Computation>>& found);

  IntrusivePtr<TensorImpl> new_result(const Shape& sizes, TensorOptions options);
  /// For who asks for a result: the stream of this thread waits for what has been put to the computation's.
  void order_after() const;

  bool pending() const;
  bool reads(const Storage& values) const;
  /// If no result is pending any more: the inputs, to be let go of without the lock.
  Tensors take_inputs_if_done();
  void enlist();
  void delist();
  void compute_laid_out();
  /// channels_last() for who does not read them: no stream waits.
  Tensor lay_out_if_possible();

  /// This computation and those that it reads and are pending, oldest first, and locked.
  struct Chain {
    std::vector<std::unique_lock<std::mutex>> locks;
    std::vector<Computation*> members;
  };
  Chain lock_chain();
  /// Runs `work` as the library, on the stream of the call.
  template <typename Work>
  void run(const Work& work);

  std::mutex mutex_;                  ///< held while it is computed; guards what follows
  SmallVector<Storage*, 2> results_;  ///< null: gone
  Tensors inputs_;                    ///< empty once nothing is pending
  int length_ = 1;
  bool follows_laid_out_ = false;
  Shape image_;                         ///< see takes_sum(); of no dimensions: it does not
  std::optional<cuda::Stream> stream_;  ///< of inputs on a CUDA device: where the work goes
  const void* thread_;                  ///< that made it: an address that each living thread has for itself
  std::atomic<bool> laid_out_{false};   ///< the inputs are one: the values of the result, channels last

  std::uint64_t age_ = 0;  ///< rises with each that has inputs
  // Among all that have inputs, by age; guarded by the list's mutex.
  Computation* older_ = nullptr;
  Computation* newer_ = nullptr;
};

/// Whether operations leave results pending: LOCKSTEP_FUSION, or set_fusion().
bool fusion();
/// For tests: computes everything that is pending first.
void set_fusion(bool value);

/// Whether a result of `work` multiply-adds (or other operations) may be left pending: fusion is on, reference kernels
/// are off, and all operands are as they are for good; of those that are lent, copies are taken if the work is much
/// more.
bool may_wait(std::int64_t work, std::initializer_list<Tensor*> operands);

/// The computation that `tensor` waits for, if that is a C and the tensor is its whole result; else null.
template <typename C>
C* pending_result_of(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  if (!storage.is_pending() || !tensor.is_contiguous() || tensor.offset() != 0 || tensor.nbytes() != storage.bytes())
    return nullptr;
  return dynamic_cast<C*>(storage.computation());
}

/// The computation that `tensor` waits for, if an operation on it may be joined to that; else null. Another thread may
/// make the values at any time: what is asked of it then is still true of what it was.
Computation* joinable(const Tensor& tensor);
inline bool can_be_joined(const Tensor& tensor) {
  return joinable(tensor) != nullptr;
}

}  // namespace lockstep
