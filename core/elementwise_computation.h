#pragma once

// Functions of each element that are computed together. For operations (.cpp files) only.

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "lockstep/core/computation.h"

namespace lockstep {

/// Note [Elementwise chains]
/// A sum, a product or a function of each element of a large tensor takes as long as its operands take to come from
/// memory and its result to go there. So on a CPU such an operation leaves its result pending, and one on pending
/// results of this kind is joined to them: an expression of any shape, `x * sigmoid(a * x + b)` with all that belongs
/// to its gradient. Who reads a result has the whole expression computed, a piece of some hundred elements at a time:
/// one operation after the other, by the loops that it has alone, from and to buffers in the first-level cache. A
/// reduction that reads one takes the pieces as they come; what was cheap to make is never in memory (ElementReader).
///
/// What lies between is written to memory with it where somebody holds it and making it again would take longer than
/// reading it, or need more memory than it has itself. The rest stays pending, and a backward function that reads it
/// computes it again as part of its own expression.
///
/// The other way round, a result that waits while its operands, of which nobody else knows any more, need no less
/// memory than it does, is computed when the thread makes the next that waits; and an expression that would keep more
/// than four times its result's memory is computed in parts. So what waits is bounded, whoever keeps it.
///
/// - Results are float32 or float64, which is what is computed in, or truths; so bits do not depend on what was joined,
///   but for the sign of a NaN, which loops of vectors and of single elements may give differently.
/// - Operands of other shapes are broadcast as they are read; a pending result of another shape, and one of another
///   kind, is computed first. So are all operands where an expression would have more than kMostSteps operations.
/// - Small tensors, half types, integers (but truths), operands in short rows, reference kernels, and operands whose
///   address was lent: computed at the call.
class ElementwiseComputation : public Computation {
 public:
  static constexpr int kMostOperands = 3;
  static constexpr std::int64_t kMostElements = 1024;  ///< of a call of apply()
  static constexpr int kMostSteps = 24;

  /// Values of an operand of apply(), of the compute type: a row, or one value for the whole row.
  struct Values {
    const void* data;
    bool one;
  };

  /// Elements from which on results are left pending. Only tests set it.
  static std::int64_t least();
  static void set_least(std::int64_t elements);

  /// May the result of a function of each element of these be left pending? `sizes` are the result's, and the operands,
  /// of which undefined ones are numbers, broadcast to them; `dtype` is what it computes in (Note [Compute types]).
  /// Operands that cannot be joined are computed first.
  static bool may_wait(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands);

  /// `sizes` and `dtype` are the result's: `compute_type`, which is float32 or float64, or bool for truths, which are 0
  /// and 1 to apply(). `cost` of an element: 1 for a sum or a product.
  ElementwiseComputation(std::initializer_list<Tensor> operands, const Shape& sizes, DType dtype, DType compute_type,
                         int cost);

  bool is_elementwise() const final { return true; }

  /// The result, pending. To be called once.
  Tensor result();

  /// out[i] of `count` elements, at most kMostElements, from the operands' values in the order of the constructor. All
  /// are of the dtype that the operation computes in; out is no operand.
  virtual void apply(const Values* operands, void* out, std::int64_t count) const = 0;

 protected:
  /// Memory for the result.
  Tensor empty_result() const { return empty(sizes_, {.dtype = dtype_, .device = device_}); }

 private:
  friend class ElementProgram;
  friend class ElementReader;

  /// What x waits for, if it can be joined to results of `numel` elements that are computed in that type.
  static ElementwiseComputation* joined(const Tensor& x, std::int64_t numel, DType compute_type);
  struct Origins;
  bool is_waiting();  ///< its result is pending
  /// It keeps memory that nobody else holds, no less than its result needs.
  bool is_wasteful();
  bool compute_graph(std::span<Computation* const> members) final;
  void deliver_kept(Tensor value) { deliver(0, std::move(value)); }

  Shape sizes_;
  DType dtype_, compute_type_;
  Device device_;
  int cost_;
  mutable int times_ = 0;  ///< it was computed and not kept; guarded by the lock
};

/// The result is that of an ElementwiseComputation, and pending.
bool is_pending_elementwise(const Tensor& tensor);

/// The elements of a pending result of the kind above, for who reads each once and in pieces.
class ElementReader {
 public:
  /// Calls read(reader) for x, a pending result of its compute type; false if it is none, and nothing was called.
  /// Every element is to be read once, by any thread.
  static bool read(const Tensor& x, const std::function<void(const ElementReader&)>& read);

  /// Elements [begin, begin + count) in the order of their indices: in `buffer`, which has room for them, or where they
  /// lie. T is x's.
  template <typename T>
  const T* values(std::int64_t begin, std::int64_t count, T* buffer) const;

 private:
  explicit ElementReader(const class ElementProgram& program) : program_(program) {}
  const class ElementProgram& program_;
};

}  // namespace lockstep
