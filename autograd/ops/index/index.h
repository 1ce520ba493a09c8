#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Elements chosen by tensors, as in PyTorch.
//
// An index is a list with a tensor for each dimension of x from the first on, fewer than x has meaning all of the rest:
//   int64 or int32   positions; negative ones count from the end
//   bool             a mask over as many dimensions as it has: the positions where it is true
//   undefined        all of the dimension, Python's `:`
// Tensors of positions broadcast to one shape, which takes the place of the dimensions they index: where these stand
// side by side, there, else in front of the others. Functions that ask where a mask is true wait for its device.

/// x[indices], as a copy. Repeated positions add their gradients. Throws Error for masks and positions that do not fit;
/// on CUDA devices a position out of range gives NaN (bool: true; integers: all bits set) instead.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
/// x with `values`, of x's dtype, at x[indices], whose shape they broadcast to. Of values for one position the last
/// stays; `accumulate` adds all of them to x instead. Waits for the device. Throws Error as index() does.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false);

/// What may stand in an index beside tensors, by libtorch's names: `x.index({Slice(0, 3), None, "...", 0})` is Python's
/// x[0:3, None, ..., 0].
namespace indexing {
inline constexpr std::nullopt_t None = std::nullopt;  ///< a new dimension of size 1; in a Slice: no bound

/// All dimensions that the rest of the index leaves over.
enum EllipsisType { Ellipsis };

/// start:stop:step along a dimension, as Tensor::slice().
struct Slice {
  std::optional<std::int64_t> start, stop, step;  ///< none: from the beginning, to the end, each
  Slice(std::optional<std::int64_t> from = None, std::optional<std::int64_t> to = None,
        std::optional<std::int64_t> by = None)
      : start(from), stop(to), step(by) {}
};

/// One of these, or a tensor or a number.
class TensorIndex {
 public:
  enum class Kind : std::uint8_t { tensor, number, slice, none, ellipsis };  ///< what it can be
  TensorIndex(std::nullopt_t) : kind_(Kind::none) {}                         ///< None
  TensorIndex(EllipsisType) : kind_(Kind::ellipsis) {}                       ///< Ellipsis
  TensorIndex(const char* dots);                                             ///< "..."; throws Error for anything else
  TensorIndex(Slice slice) : kind_(Kind::slice), slice_(slice) {}
  TensorIndex(Tensor tensor) : tensor_(std::move(tensor)) {}  ///< positions, a mask, or undefined: all
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) TensorIndex(T number)
      : kind_(Kind::number), number_(static_cast<std::int64_t>(number)) {}  ///< one position, whose dimension goes

  Kind kind() const { return kind_; }               ///< which of them it is
  const Tensor& tensor() const { return tensor_; }  ///< if it is a tensor
  std::int64_t number() const { return number_; }   ///< if it is a number
  const Slice& slice() const { return slice_; }     ///< if it is a slice

 private:
  Kind kind_ = Kind::tensor;
  std::int64_t number_ = 0;
  Slice slice_;
  Tensor tensor_;
};
}  // namespace indexing

/// x[indices]: numbers, slices, None and "..." as in Python, which give a view; with tensors among them a copy, as
/// above. Throws Error for more than one "...", or more indices than dimensions.
Tensor index(const Tensor& x, std::initializer_list<indexing::TensorIndex> indices);

/// The elements of x where `mask` is true, in row-major order; both broadcast. One dimension.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// x with a value where `mask` is true; both broadcast. The result has x's dtype, whose category must hold the value's.
/// A tensor as value has no dimensions.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

/// x with the elements of `source`, in row-major order, where `mask` (bool, which broadcasts to x) is true. Throws
/// Error for a source of another dtype or with fewer elements than the mask names. torch.masked_scatter.
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);

/// int64 [n, x.dim()]: the positions of the n elements that are not 0, in row-major order. Waits for the device.
Tensor nonzero(const Tensor& x);
/// The same by dimension, as PyTorch's where() of a condition alone: a tensor [n] for each, which index() takes.
std::vector<Tensor> where(const Tensor& condition);

}  // namespace lockstep
