#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Copies whose elements are those of a tensor at other places. Any dtype; negative dimensions count from the end.
// Composed of views and copies, on devices other than the CPU flip() and the paddings other than constant of
// index_select(), and differentiable.

/// What pad() puts beside x: a value; the elements beyond the edge one, backwards; the edge; or the other end.
enum class PadMode : std::uint8_t { constant, reflect, replicate, circular };
inline constexpr PadMode kConstant = PadMode::constant;    ///< under libtorch's names, as the next ones
inline constexpr PadMode kReflect = PadMode::reflect;      ///< PadMode::reflect
inline constexpr PadMode kReplicate = PadMode::replicate;  ///< PadMode::replicate
inline constexpr PadMode kCircular = PadMode::circular;    ///< PadMode::circular
/// x with padding[0] elements more before and padding[1] after its last dimension, padding[2] and padding[3] along the
/// one before, and so on, as torch.nn.functional.pad; negative numbers cut off. Throws Error for an odd number of
/// paddings, for more than x has dimensions, and for reflections or repetitions of more than there is.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& padding, PadMode mode = PadMode::constant,
           double value = 0.0);

/// x times[0], times[1], ... times along its dimensions; more numbers than dimensions put new ones in front, as
/// torch.Tensor.repeat.
Tensor repeat(const Tensor& x, const Shape& times);
/// The same, where fewer numbers than dimensions are those of the last ones, as torch.tile.
Tensor tile(const Tensor& x, const Shape& times);
/// Each element `times` times in a row along dim.
Tensor repeat_interleave(const Tensor& x, std::int64_t times, std::int64_t dim);
/// Slice i along dim times[i] times in a row; `times` is int64, [x.size(dim)] or one number for all. Waits for the
/// device. Throws Error for negative numbers. The messages of a graph's nodes along its edges, say.
Tensor repeat_interleave(const Tensor& x, const Tensor& times, std::int64_t dim);
/// The same of the elements in row-major order.
Tensor repeat_interleave(const Tensor& x, const Tensor& times);
Tensor repeat_interleave(const Tensor& x, std::int64_t times);
/// The numbers 0, 1, ..., each times[i] times.
Tensor repeat_interleave(const Tensor& times);
/// In reverse order along these dimensions.
Tensor flip(const Tensor& x, const Shape& dims);
/// Shifted by shifts[i] along dims[i]; what leaves at one end enters at the other. Without dims: of all elements in
/// row-major order.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims = {});
/// Coordinates of a grid from those of its axes, as torch.meshgrid with indexing = "ij": views.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes);
/// The same with indexing "ij" or "xy", which exchanges the first two dimensions of the results.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes, std::string_view indexing);
/// All combinations of the elements of tensors of one dimension, a row each, the last one's changing fastest.
Tensor cartesian_prod(const std::vector<Tensor>& tensors);
/// Turned k times by 90 degrees from dimension dims[0] towards dims[1].
Tensor rot90(const Tensor& x, std::int64_t k = 1, const Shape& dims = {0, 1});
/// flip() along dimension 1, and along dimension 0.
Tensor fliplr(const Tensor& x);
Tensor flipud(const Tensor& x);
/// int64 [2, n]: rows and columns of the elements on and below (above) a diagonal of a matrix, in row-major order.
Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t diagonal = 0);
Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t diagonal = 0);
/// The windows of `size` elements that lie `step` apart along dim, as a last dimension: Tensor::unfold of PyTorch, but
/// a copy. Throws Error for windows that do not fit.
Tensor windows(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step);
/// The last dimension of x as a diagonal of two dimensions of the result, which is 0 elsewhere.
Tensor diag_embed(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = -2, std::int64_t dim2 = -1);
/// A matrix with these matrices (or rows, or numbers) one after the other along its diagonal.
Tensor block_diag(const std::vector<Tensor>& blocks);
/// A matrix with x [n] on a diagonal, or the diagonal of a matrix, as a copy, as torch.diag.
Tensor diag(const Tensor& x, std::int64_t diagonal = 0);
/// The sum of the diagonal of a matrix.
Tensor trace(const Tensor& x);
/// The differences of neighbours along dim, taken n times, as torch.diff.
Tensor diff(const Tensor& x, std::int64_t n = 1, std::int64_t dim = -1);
/// int64 [*, classes]: 1 at each of the class indices x, 0 elsewhere. `classes` of -1: the largest index and 1 more,
/// which waits for the device. Throws Error for dtypes other than int64 and, on the CPU, for indices out of range.
Tensor one_hot(const Tensor& x, std::int64_t classes = -1);
/// [*, c r^2, h, w] to [*, c, h r, w r]. Shi et al., "Real-time single image and video super-resolution using an
/// efficient sub-pixel convolutional neural network" (2016).
Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor);
/// Its inverse.
Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor);

/// Options of unfold() and fold().
struct UnfoldOptions {
  Size2d dilation = 1;  ///< distance between the elements of a window
  Size2d padding = 0;   ///< zeros on each side
  Size2d stride = 1;    ///< step of the window
};

/// The windows of images [n, c, h, w] as columns [n, c kh kw, windows], windows in row-major order, as
/// torch.nn.functional.unfold; both without n too. Throws Error for sizes that do not fit.
Tensor unfold(const Tensor& x, Size2d kernel, const UnfoldOptions& options = {});
/// Its transpose: the columns of windows added up into images of `size`, as torch.nn.functional.fold. Values for one
/// element are added in a fixed order.
Tensor fold(const Tensor& columns, Size2d size, Size2d kernel, const UnfoldOptions& options = {});

}  // namespace lockstep
