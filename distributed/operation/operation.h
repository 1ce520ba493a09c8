#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep::distributed {

/// What operations end with when their group cannot work any more: a rank is gone, a deadline passed, or the ranks
/// called different collectives. The message names the operation, its number, the missing ranks and where each was last
/// seen.
class ProcessGroupError : public Error {
 public:
  using Error::Error;
  ProcessGroupError(const std::string& message, std::string brief) : Error(message), brief_(std::move(brief)) {}

  /// For a program to print before it ends: one line that does not repeat what a rank's report in the log says, or
  /// what() if there is no report.
  std::string brief() const { return brief_.empty() ? what() : brief_; }

 private:
  std::string brief_;
};

/// A few words on what an operation is for, such as "bucket 2: fc1.weight, fc1.bias". Made once (equal texts share one
/// copy, which stays until the process ends, so that even a signal handler may read it), then as cheap as a pointer.
class OperationLabel {
 public:
  /// Longer texts are cut, with "..." at the end.
  static constexpr std::size_t kMaxBytes = 240;

  constexpr OperationLabel() = default;
  explicit OperationLabel(std::string_view text);

  std::string_view text() const { return text_; }  ///< up to kMaxBytes
  std::uint64_t hash() const { return hash_; }     ///< of the text; 0 of an empty one
  /// With a 0 at its end.
  const char* c_str() const { return text_.data(); }
  bool empty() const { return text_.empty(); }

 private:
  std::string_view text_ = "";
  std::uint64_t hash_ = 0;
};

/// Labels the operations that this thread issues while the object lives; the innermost counts. All ranks must label a
/// collective alike: under different labels it is a different call, so that those with different purposes never meet.
///
///   const OperationLabel label("loss and count");  // once
///   const LabelScope scope(label);
///   group.all_reduce(totals);                      // "all_reduce #7 (float64 [2], sum; loss and count)"
class LabelScope {
 public:
  explicit LabelScope(OperationLabel label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

  /// Of this thread; empty outside all scopes.
  static OperationLabel current();

 private:
  OperationLabel before_;
};

/// How values of several ranks become one. `avg` is the sum, then divided by the world size by us, on every backend.
/// `band`, `bor` and `bxor` are bitwise and, or and exclusive or, of integers and, logical then, of bool.
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor };

/// band, bor and bxor.
constexpr bool is_bitwise(ReduceOp op) {
  return op >= ReduceOp::band;
}

/// The operations of a ProcessGroup, each under the name of its method.
enum class OperationKind : std::uint8_t {
  broadcast,
  all_reduce,
  all_reduce_tree,
  reduce,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  all_gather_uneven,
  all_to_all_uneven,
  barrier,
  send,
  recv,
  exchange,
};

/// "sum", "all_reduce", ...
std::string_view name(ReduceOp op);
std::string_view name(OperationKind kind);

/// send, recv and exchange involve two ranks; everything else is a collective of all.
constexpr bool is_point_to_point(OperationKind kind) {
  return kind >= OperationKind::send;
}

/// Each rank gives and takes sizes of its own.
constexpr bool is_uneven(OperationKind kind) {
  return kind == OperationKind::all_gather_uneven || kind == OperationKind::all_to_all_uneven;
}

/// One validated call on a process group.
struct Operation {
  OperationKind kind = OperationKind::barrier;  ///< which of them
  Tensor input = {};                            ///< read; undefined where the rank gives nothing
  Tensor output =
      {};         ///< written; the same tensor as `input` for operations in place, undefined where it takes nothing
  int peer = -1;  ///< root of a rooted collective, the other rank of a point-to-point operation, else -1
  ReduceOp reduce = ReduceOp::sum;  ///< of a reduction
  /// Position among this rank's collectives, or among its operations of this kind with this peer; from 0.
  std::uint64_t number = 0;
  /// all_reduce_tree: leaves of the tree, and where the divisor will stand when the operation runs (undefined: 1).
  std::int64_t shards = 0;
  Tensor divisor = {};  ///< see shards
  /// Of uneven operations: how many elements of `input` go to each rank, and of `output` come from each.
  std::vector<std::int64_t> input_counts = {};
  std::vector<std::int64_t> output_counts = {};  ///< see input_counts
  /// Of operations on lists: the block for each rank, and from each, in memory of its own. `input` and `output` are
  /// this rank's of them then. Empty: the blocks stand one after the other in `input` and `output`.
  std::vector<Tensor> inputs = {};
  std::vector<Tensor> outputs = {};  ///< see inputs
  /// What it is for, and in which training step; see OperationLabel and ProcessGroup::set_step().
  OperationLabel label = {};
  std::int64_t step = -1;  ///< -1: the program does not say
  /// Collectives under different ones are different calls; -1: unchecked. See ProcessGroup::set_step().
  std::int64_t checked_step = -1;
};

/// What is told of an operation: everything but its tensors. Cheap to copy, and holds no memory.
struct OperationInfo {
  OperationKind kind = OperationKind::barrier;  ///< which operation
  ReduceOp reduce = ReduceOp::sum;              ///< of a reduction
  bool has_tensor = false;                      ///< false for a barrier
  DType dtype = kFloat32;                       ///< of agreed_tensor()
  int peer = -1;                                ///< see Operation
  std::uint64_t number = 0;                     ///< see Operation
  std::int64_t step = -1;                       ///< see Operation
  OperationLabel label = {};                    ///< see Operation
  Shape sizes;                                  ///< of agreed_tensor()
};

/// The tensor that every rank of the operation has, one block in size: the input, or what a scatter or recv writes. Of
/// uneven operations the input, whose sizes are the rank's own.
const Tensor& agreed_tensor(const Operation& operation);
/// Of a reduction whose blocks, one for each rank, may have different sizes.
bool scatters_a_list(const Operation& operation);
/// What all ranks of a collective must agree on: kind, root, reduction, dtype, sizes (not of uneven ones), label, and
/// the step where it is checked.
std::uint64_t fingerprint(const Operation& operation);
OperationInfo info_of(const Operation& operation);
/// "all_reduce #41 (float32 [1024], sum; bucket 2: fc1.weight, fc1.bias)".
std::string describe(const OperationInfo& info);
std::string describe(const Operation& operation);

}  // namespace lockstep::distributed
