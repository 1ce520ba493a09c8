#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// With probability p sets an element to 0; scales the others by 1 / (1 - p). `training = false` or p = 0 returns x
/// itself; p = 1 gives x * 0. Follows torch.nn.functional.dropout, but with p < 1 a dropped element is 0 even if x is
/// infinite or NaN there. Each call draws one key from RandomStream::dropout; see Note [Random keys]: element i depends
/// on the key and i alone. Floating-point tensors; throws Error unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

/// Where a tensor lies in a larger one: its elements of dimension `dim` (from the end if negative) are those from
/// `first` on of `size`.
struct DropoutPart {
  int dim = -1;                      ///< in which the tensor is a part
  std::int64_t first = 0, size = 0;  ///< position of its first element, and elements of the whole
};
/// dropout() of a part of a tensor: drops what dropout() of all of it drops there. Throws Error for a part that does
/// not lie within.
Tensor dropout_of_part(const Tensor& x, const DropoutPart& part, double p = 0.5, bool training = true);

/// dropout() of whole channels of x [N, C, H, W] or [C, H, W].
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);
/// The same of x [N, C, L] or [C, L], and of x [N, C, D, H, W] or [C, D, H, W].
Tensor dropout1d(const Tensor& x, double p = 0.5, bool training = true);
Tensor dropout3d(const Tensor& x, double p = 0.5, bool training = true);

/// With probability p sets an element to selu()'s negative limit instead of 0, and moves and scales all, so that mean 0
/// and variance 1 stay. Draws and Errors as dropout(). Klambauer et al., "Self-normalizing neural networks" (2017).
Tensor alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);
/// alpha_dropout() of whole channels of x [N, C, ...].
Tensor feature_alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace lockstep
