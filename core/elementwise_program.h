#pragma once

// How expressions of Note [Elementwise chains] are computed. For elementwise_computation.cpp and its tests.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/elementwise_computation.h"

namespace lockstep {

/// The operations of an expression in their order, and where each finds its operands.
class ElementProgram {
 public:
  /// Of `members`, the last of which makes the result. That one is kept in memory if `keep_last` or if making it again
  /// would take longer than reading it; others if somebody but the members holds them, too.
  ElementProgram(std::span<Computation* const> members, bool keep_last);

  /// Computes elements [begin, begin + count) of the result, and of what is kept. Writes them to `out`, of the compute
  /// type, where the result is not kept; returns where they are.
  template <typename C>
  const C* run(std::int64_t begin, std::int64_t count, C* out) const;
  /// Computes all, if the result is kept.
  void run_all() const;
  /// Hands over what was kept.
  void deliver();

 private:
  static constexpr std::int64_t kPiece = ElementwiseComputation::kMostElements;

  /// An operand that lies in memory, broadcast to the result's sizes.
  struct Leaf {
    Tensor tensor;
    const void* data = nullptr;
    bool dense = false;    ///< element i of the result meets its element i
    Shape sizes, strides;  ///< else: the result's sizes, dimensions merged, and how far apart its elements lie there
    int buffer = -1;       ///< for values that are not read where they lie
  };
  struct Source {
    bool is_leaf = false;
    int index = 0;
  };
  struct Step {
    ElementwiseComputation* computation = nullptr;
    std::array<Source, ElementwiseComputation::kMostOperands> sources{};
    int operands = 0;
    int buffer = -1;  ///< -1: the last one, which writes where the caller says
    Tensor kept;      ///< its result in memory
    void* to = nullptr;
  };

  int add_leaf(const Tensor& operand, const Shape& sizes);
  void choose_kept(bool keep_last);
  void assign_buffers();
  template <typename C>
  ElementwiseComputation::Values leaf_values(const Leaf& leaf, std::int64_t begin, std::int64_t count, C* buffer) const;
  template <typename C>
  const C* run_piece(std::int64_t begin, std::int64_t count, C* out) const;

  std::vector<Step> steps_;
  std::vector<Leaf> leaves_;
  std::int64_t numel_ = 0;
  std::int64_t width_ = 0;  ///< pieces do not cross multiples of it; 0: they may
  int buffers_ = 0;
  DType compute_type_ = kFloat32;
};

}  // namespace lockstep
