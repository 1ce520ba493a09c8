#pragma once

// Images whose values lie in memory channel by channel within each pixel. For operations (.cpp files) only.

#include "lockstep/core/computation.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Note [Channels last]
/// cuDNN's kernels for tensor cores want images as [n, height, width, channels], and turn others round, there and back,
/// in every pass. So the values of an image [n, channels, height, width] on a CUDA device may lie in memory in that
/// order, while the result in its own order is left pending (Note [Pending values]): it is *laid out*. An operation
/// that can do with either order asks for channels_last_of(), and makes its own result by from_channels_last(). Any
/// other reads an address, as ever, and thereby has the values copied. So layouts follow from the operations of a
/// network, nobody has to choose one, and a tensor's strides, views and values are what they would be without, up to
/// the last bits: which of cuDNN's kernels computes a convolution depends on the order in which it finds and leaves its
/// images, and so on what else the program does with them.

namespace detail {
Tensor find_channels_last(const Tensor& pending);
}

/// The values of an image tensor [n, channels, height, width] as a contiguous tensor [n, height, width, channels], if
/// they lie so in memory, or are still to be computed and can be so. Else undefined. Not to be changed.
inline Tensor channels_last_of(const Tensor& tensor) {
  return tensor.storage()->is_pending() ? detail::find_channels_last(tensor) : Tensor();
}
/// Whether the values of `tensor` lie in memory so, and it is pending.
bool is_laid_out(const Tensor& tensor);
/// The same as channels_last_of() for an operation that has a kernel together with what `tensor` waits for, in the
/// order of its sizes: only if that began with a tensor that is laid out.
Tensor channels_last_if_followed(const Tensor& tensor);
/// `tensor`, laid out by a copy if `other`, of its sizes, is laid out and it is not.
Tensor laid_out_like(const Tensor& tensor, const Tensor& other);
/// The same as channels_last_of(), by a copy where they do not lie so. Takes filters [out, in, height, width] too.
Tensor to_channels_last(const Tensor& tensor);
/// A tensor [n, channels, height, width] of the `values` [n, height, width, channels], which nobody changes any more.
Tensor from_channels_last(Tensor values);
/// The same tensor as a view, whose strides are not those of a contiguous one.
Tensor in_order_of_channels(const Tensor& values);
/// And the other way round: a view [n, height, width, channels] of a tensor [n, channels, height, width].
Tensor as_channels_last(const Tensor& tensor);

}  // namespace lockstep
